#!/bin/sh
# Writes the facts of a build into a header, and leaves the file alone when nothing changed.
# usage: build_info.sh HEADER CC FLAGS
set -eu
header=$1 cc=$2 flags=$3

commit='' dirty=false
if [ -e .git ] && commit=$(git rev-parse --verify -q HEAD 2>/dev/null); then
    # changes of what is tracked, and sources that are not: a scenario or a database of the user's changes no build
    [ -z "$(git status --porcelain --untracked-files=no 2>/dev/null
            git ls-files --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null)" ] || dirty=true
else
    commit=''
fi
name=$(basename "${cc%% *}")
compiler="$name $($cc -dumpfullversion -dumpversion)"
text=$(printf '#define CEDAR_BUILD_COMMIT "%s"\n#define CEDAR_BUILD_DIRTY %s\n' "$commit" "$dirty"
       printf '#define CEDAR_BUILD_COMPILER "%s"\n#define CEDAR_BUILD_FLAGS "%s"\n' "$compiler" \
           "$(printf '%s' "$flags" | tr -s ' ' | sed 's/^ //; s/ $//; s/\\/\\\\/g; s/"/\\"/g')")
if [ ! -f "$header" ] || [ "$(cat "$header")" != "$text" ]; then
    printf '%s\n' "$text" > "$header"
fi
