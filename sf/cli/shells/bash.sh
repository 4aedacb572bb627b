_sf_bash() {
  local words=() word index last
  # Bash takes --env=CartPole apart at the "=".
  for ((index = 0; index <= COMP_CWORD; index++)); do
    word="${COMP_WORDS[index]}"
    if ((index > 0)) && [[ "$word" == "=" || "${COMP_WORDS[index - 1]}" == "=" ]]; then
      words[-1]+="$word"
    else
      words+=("$word")
    fi
  done
  last="${words[-1]}"
  mapfile -t COMPREPLY < <(compgen -W "$(_sf_candidates "${words[@]}")" -- "$last")
  if [[ "$last" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#*=}")
  fi
  if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=/] ]]; then
    compopt -o nospace 2> /dev/null
  fi
}

complete -o default -F _sf_bash @programs@
