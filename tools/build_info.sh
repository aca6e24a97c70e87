#!/bin/sh
# Writes the facts of a build into a header, and leaves the file alone when nothing changed.
# usage: build_info.sh HEADER CC FLAGS
set -eu
header=$1 cc=$2 flags=$3

commit='' dirty=false
if [ -e .git ] && commit=$(git rev-parse --verify -q HEAD 2>/dev/null); then
    [ -z "$(git status --porcelain 2>/dev/null | head -n 1)" ] || dirty=true
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
