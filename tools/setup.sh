#!/bin/sh
# Installs what is missing on Debian and Ubuntu, saying what and why; elsewhere it says what to install.
#
# usage: setup.sh [--say] [build] [test] [e2e] [report] [fuzz] [ci]
#   build ... ci     which needs to look at
#   --say            install nothing: print the line to run and fail
# CEDAR_NO_INSTALL=1 does the same as --say. Exit status 0: everything is there.
set -u

say=${CEDAR_NO_INSTALL:+1}
needs=
for word in "$@"; do
    case $word in
    --say) say=1 ;;
    build | test | e2e | report | fuzz | ci) needs="$needs $word" ;;
    *) echo "setup.sh: $word is none of --say, build, test, e2e, report, fuzz, ci" >&2; exit 1 ;;
    esac
done

has_program() { command -v "$1" >/dev/null 2>&1; }
has_library() { pkg-config --exists "$1" 2>/dev/null; }
has_header() { printf '#include <%s>\n' "$1" | ${CC:-gcc} -E - >/dev/null 2>&1; }
has_file() { [ -r "$1" ]; }
has_fuzzer() {
    for file in "libclang_rt.fuzzer-$(uname -m).a" libclang_rt.fuzzer.a; do
        has_file "$(clang -print-file-name="$file" 2>/dev/null)" && return 0
        has_file "$(clang -print-runtime-dir 2>/dev/null)/$file" && return 0
    done
    return 1
}

# The compiler that was asked for, when it is one of the two that have packages of their name.
compiler=gcc
case $(basename "${CC:-gcc}") in clang) compiler=clang ;; esac

missing=
# want PACKAGE WHY PROBE ARGUMENT
want() {
    "$3" "$4" && return 0
    missing="$missing $1"
    echo "missing: $1: $2"
}

look() {
    missing=
    case "$needs " in *" build "*)
        want "$compiler" "the C compiler" has_program "${CC:-gcc}"
        want libc6-dev "headers of the C library" has_header stdio.h
        want binutils "the linker, which also embeds SQL and scripts" has_program ld
        want pkg-config "finds the libraries below" has_program pkg-config
        want liblua5.4-dev "scenarios are Lua programs" has_library lua5.4
        want libsqlite3-dev "results are an SQLite database" has_library sqlite3
        want libjansson-dev "traces and model shapes are JSON" has_library jansson
        want zlib1g-dev "traces may be gzip files" has_library zlib
        want libmd-dev "SHA-256 of traces, models and scenarios" has_library libmd
        want libcurl4-openssl-dev "runs against HTTP endpoints" has_library libcurl
        want libmicrohttpd-dev "the HTTP server of cedar serve" has_library libmicrohttpd
        want libjs-chart.js "charts of the HTML report" has_file /usr/share/javascript/chart.js/chart.min.js ;;
    esac
    case "$needs " in *" test "*)
        want check "the unit test library" has_library check
        want openssl "certificates for the tests of https" has_program openssl
        want python3 "the TLS side of those tests" has_program python3
        want ca-certificates "whom https trusts unless told otherwise" has_file /etc/ssl/certs/ca-certificates.crt ;;
    esac
    case "$needs " in *" e2e "*)
        want sqlite3 "the end-to-end tests look into databases" has_program sqlite3 ;;
    esac
    case "$needs " in *" report "*)
        want python3 "runs the test of the HTML report" has_program python3
        want chromium "opens reports as a reader does" has_program "${CHROMIUM:-chromium}" ;;
    esac
    case "$needs " in *" fuzz "*)
        want clang "the second compiler, and fuzzing" has_program clang
        want libclang-rt-dev "libFuzzer and clang's sanitizers" has_fuzzer any ;;
    esac
    case "$needs " in *" ci "*)
        want git "a clean checkout, and the commit in results" has_program git ;;
    esac
}

report=$(look)
look >/dev/null
[ -n "$missing" ] || exit 0
printf '%s\n' "$report"

root=
if [ "$(id -u)" -ne 0 ]; then
    root="sudo "
    has_program sudo && sudo -n true 2>/dev/null || say=1
fi
has_program apt-get || say=1
if [ -n "$say" ]; then
    echo "to install:  ${root}apt-get install --no-install-recommends$missing"
    exit 1
fi

echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists of a fresh machine may be absent or old. A third-party source that fails does not stop us: what counts is
# whether the packages can be installed.
${root}apt-get update >"$log" 2>&1 || echo "apt-get update had errors; going on"
# shellcheck disable=SC2086
if ! ${root}env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >"$log" 2>&1; then
    tail -n 20 "$log"
    echo "the installation failed; to try by hand:  ${root}apt-get install --no-install-recommends$missing"
    exit 1
fi
report=$(look)
look >/dev/null
if [ -n "$missing" ]; then
    printf '%s\n' "$report"
    echo "these are installed now and still not found; is another compiler or pkg-config first in PATH?"
    exit 1
fi
