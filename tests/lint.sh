#!/bin/sh
# Formatters and analysers over everything: lint.sh, called by make lint with CABLEWAY_BUILD set. Prints TAP.
set -u
number=0
status=0

check() { # check NAME COMMAND...
    name=$1
    shift
    number=$((number + 1))
    if "$@" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        status=1
    fi
}
# shellcheck disable=SC2317 # called through check
each() { # each COMMAND...: the command once for every C file of ours, both cores at work
    # One file at a time: of several the analyzer tells what it does not tell of any alone, and what is false.
    find shm ipc broker tools -name '*.c' -print0 | xargs -0 -P "$(nproc)" -n 1 "$@"
}
tidy_c() { # tidy_c FILES...
    clang-tidy --quiet "$@" -- -std=gnu11 -D_GNU_SOURCE -I. -isystem "${CUDA_INCLUDE:?}" 2>&1 | grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter'
    # shellcheck disable=SC2319
    [ $? = 1 ]
}
if [ "${1:-}" = --tidy ]; then
    shift
    tidy_c "$@"
    exit
fi

check "clang-format" sh -c 'find shm ipc broker tools tests py/csrc docs -name "*.[ch]" -print0 | xargs -0 -r clang-format --dry-run -Werror'
check "clang-tidy" each sh "$0" --tidy
# uninitvar: cppcheck does not see into uthash's macros; the compilers look for the same.
check "cppcheck" cppcheck --quiet --std=c11 -j "$(nproc)" --enable=warning,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches --suppress=uninitvar -D_GNU_SOURCE -I. shm ipc broker tools
check "ruff check" ruff check --no-cache --config py/pyproject.toml py/*.py py/cableway tests docs tools
check "ruff format" ruff format --no-cache --check --config py/pyproject.toml py/*.py py/cableway tests docs tools
check "mypy" mypy --cache-dir "${CABLEWAY_BUILD:?}/mypy" --config-file py/pyproject.toml py/cableway
if command -v shellcheck >/dev/null; then
    check "shellcheck" sh -c 'find tests tools .ci -type f \( -name "*.sh" -o -path .ci/run \) -print0 | xargs -0 shellcheck'
fi
echo "1..$number"
exit $status
