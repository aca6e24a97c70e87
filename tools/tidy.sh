#!/bin/bash
# What no source file may have: tabs in C, lines over 120 columns, blanks at line ends, leftovers, paths of a machine.
set -u
export LC_ALL=C.UTF-8
fail=0

# refuse WHAT PATTERN FILE...
refuse() {
    local what=$1 pattern=$2
    shift 2
    [ $# -gt 0 ] || return 0
    if grep -nHP "$pattern" "$@" | cut -c 1-100 | sed "s/^/$what: /" | grep .; then fail=1; fi
}

mapfile -t c < <(tools/sources.sh '*.c' '*.h' '*.cu' '*.cuh')
mapfile -t code < <(tools/sources.sh '*.c' '*.h' '*.cu' '*.cuh' '*.lua' '*.sql' '*.sh' '*.js' '*.css' Makefile run)
mapfile -t text < <(tools/sources.sh '*.c' '*.h' '*.cu' '*.cuh' '*.lua' '*.sql' '*.sh' '*.py' '*.js' '*.css' '*.md' \
    '*.json' Makefile run)

refuse 'tab' '\t' "${c[@]}"
refuse 'more than 120 columns' '^.{121,}' "${code[@]}"
refuse 'blank at the end' '[ \t]+$' "${code[@]}"
# The bracket keeps this file from finding itself.
refuse 'leftover' '\b(TO[D]O|FIX[M]E|XX[X])\b' "${text[@]}"
refuse 'path of a machine' '(^|[^A-Za-z0-9_.*])/(work|root|home)/' "${text[@]}"
[ $fail -eq 0 ] && echo "tidy: ${#text[@]} files"
exit $fail
