#!/bin/sh
# Lists the project's own text files whose names match one of the patterns, sorted: sources.sh '*.c' '*.h'
# Made files, trace data and test data are left out.
set -eu
find . \( -path ./build -o -path ./.git -o -path ./traces/\*/\* -o -path ./tests/broken -o -path ./tests/golden \
    -o -path ./tests/out \) -prune -o -type f -print | sed 's|^\./||' | LC_ALL=C sort | while read -r file; do
    for pattern in "$@"; do
        # shellcheck disable=SC2254
        case $(basename "$file") in $pattern) printf '%s\n' "$file"; break ;; esac
    done
done
