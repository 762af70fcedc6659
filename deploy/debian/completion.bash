# What the program's own --help lists of the command that stands there so far.
_@FUNCTION@() {
  local word commands=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do [[ $word == -* ]] || commands+=("$word"); done
  mapfile -t COMPREPLY < <(compgen -o default -W \
    "$("$1" "${commands[@]}" --help 2>/dev/null | sed -nE 's/^  ((-[a-z],)?--[a-z-]+|[a-z-]+)[ ,].*/\1/p' | sed 's/^-.,//')" \
    -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -F _@FUNCTION@ @PROGRAM@
