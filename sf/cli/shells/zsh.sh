_sf_zsh() {
  local -a candidates
  candidates=("${(@f)$(_sf_candidates "${(@)words[1,CURRENT]}")}")
  if [[ -z "$candidates" ]]; then
    compset -P '*='
    _files
    return
  fi
  compadd -S '' -- "${(@M)candidates:#*[=/]}"
  compadd -- "${(@)candidates:#*[=/]}"
}

whence compdef > /dev/null || { autoload -Uz compinit && compinit }
compdef _sf_zsh @programs@
