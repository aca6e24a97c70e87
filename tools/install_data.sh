#!/bin/sh
# Copies what the installed program needs beside itself: scenarios, trace samples, models (45 MB), documents.
# usage: install_data.sh DATADIR DOCDIR
set -eu
data=$1 doc=$2
copy() {    # FROM_FOLDER TO_FOLDER FIND_TESTS...: keeps the folders below
    from=$1 to=$2
    shift 2
    find "$from" -type f \( "$@" \) | while read -r file; do
        install -D -m 644 "$file" "$to/$file"
    done
}
copy scenarios "$data" -name '*.lua' -o -name '*.json' -o -name '*.md' -o -name '*.csv'
copy traces "$data" ! -name '*.[ch]'
copy models "$data" ! -name '.*'
copy docs "$doc" -name '*.md' -o -name '*.png'
for file in README.md LICENSE NOTICE; do install -m 644 "$file" "$doc/$file"; done
