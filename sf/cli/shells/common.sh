# Completion of sf $version, printed by `sf completion $shell`. Print it again after an update of sf.

# The parts of a command.
_sf_parts() {
  case "$$1" in
$parts
  esac
}

# The flags of a command.
_sf_flags() {
  case "$$1" in
$flags
  esac
}

# The values of a flag of a command, as far as they are words.
_sf_values() {
  case "$$1 $$2" in
$values
    *' --experiment') _sf_runs "$$3" ;;
  esac
}

# The runs of a directory.
_sf_runs() {
  command find "$$1" -maxdepth 2 -name .sf-experiment 2> /dev/null |
    sed -e 's,/[^/]*$$,,' -e 's,.*/,,' -e '/\.before-/d' | sort
}

# Whatever may stand in place of the last of these words, one a line.
_sf_candidates() {
  local name="$${1##*/}" directory=train_dir before="" last="" word values
  shift
  if [ "$$name" = sf ]; then
    if [ $$# -le 1 ]; then
      printf '%s\n' $commands
      return
    fi
    name="$$1"
    shift
  else
    name="$${name#sf-}"
  fi
  if [ -n "$$(_sf_parts "$$name")" ]; then
    if [ $$# -le 1 ]; then
      _sf_parts "$$name"
      return
    fi
    name="$$name $$1"
    shift
  fi
  for word in "$$@"; do
    before="$$last"
    last="$$word"
    case "$$last" in --train_dir=*) directory="$${last#*=}" ;; esac
    case "$$before" in --train_dir) directory="$$last" ;; esac
  done
  case "$$last" in
    --*=*)
      _sf_values "$$name" "$${last%%=*}" "$$directory" | sed "s|^|$${last%%=*}=|"
      return
      ;;
    -*)
      _sf_flags "$$name"
      return
      ;;
  esac
  case "$$before" in
    --*=*) values="" ;;
    --*) values="$$(_sf_values "$$name" "$$before" "$$directory")" ;;
    *) values="" ;;
  esac
  # A boolean needs no value, so a run may follow it.
  case "$$values" in
    '' | True*) case "$$name" in $takes_runs) _sf_runs "$$directory" ;; esac ;;
    *) printf '%s\n' "$$values" ;;
  esac
}

