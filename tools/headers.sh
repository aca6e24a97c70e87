#!/bin/bash
# Every header compiles alone, with gcc and with clang.
set -u
flags=(-std=gnu11 -ffp-contract=off -I. -D_GNU_SOURCE -DCEDAR_ARITH_WIDE -Wall -Wextra -Werror -Wshadow -Wconversion
    -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith)
read -ra packages < <(pkg-config --cflags lua5.4 sqlite3 jansson libmicrohttpd)
mapfile -t headers < <(tools/sources.sh '*.h' | grep -E '^(base|engine|traces|audit|http|sim|lua|reports|serve)/')
fail=0
for compiler in gcc clang; do
    if ! command -v $compiler >/dev/null; then
        echo "SKIP headers with $compiler: it is not installed"
        continue
    fi
    for header in "${headers[@]}"; do
        echo "#include \"$header\"" | $compiler "${flags[@]}" "${packages[@]}" -fsyntax-only -x c - || fail=1
    done
    echo "headers: ${#headers[@]} with $compiler"
done
exit $fail
