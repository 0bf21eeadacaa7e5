#!/bin/sh
# Builds everything with gcc and with clang, optimised and not, and fails on a warning (-Werror). Prints TAP.
set -u
status=0
number=0
for cc in gcc clang; do
    for opt in -O0 -O3; do
        number=$((number + 1))
        name="builds without a warning: $cc $opt"
        folder="${CABLEWAY_BUILD:?}/cc/$cc$opt"
        if ! command -v "$cc" >/dev/null; then
            echo "ok $number - $name # SKIP no $cc"
        elif make -s -j"$(nproc)" BUILD="$folder" CC="$cc" OPT="$opt" SANITIZE= WERROR=-Werror all 2>&1; then
            echo "ok $number - $name"
        else
            echo "not ok $number - $name"
            status=1
        fi
    done
done
echo "1..$number"
exit $status
