#!/bin/sh
# Builds and runs each libFuzzer program, or those named, for some seconds: fuzz.sh SECONDS [NAME ...]. Prints TAP; the seed stands in the log, the
# corpus grows in the build folder; it begins with the seeds in tests/fuzz/corpus.
set -u
seconds=${1:-60}
shift $(($# > 0))
wanted=" $* "
build=${CABLEWAY_BUILD:?}/fuzz
status=0
number=0
if command -v clang >/dev/null; then
    make -s -k -j"$(nproc)" BUILD="$build" CC=clang OPT='-O1 -g' fuzzers \
        SANITIZE='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined' || status=1
fi
for source in tests/fuzz/*.c; do
    name=$(basename "$source" .c)
    case "$wanted" in "  " | *" $name "*) ;; *) continue ;; esac
    number=$((number + 1))
    program="$build/tests/fuzz/$name"
    corpus="$build/corpus/$name"
    if ! command -v clang >/dev/null; then
        echo "ok $number - $name # SKIP no clang"
        continue
    fi
    seeds="tests/fuzz/corpus/$name"
    [ -d "$seeds" ] || seeds=
    mkdir -p "$corpus"
    # fuzz_link wants a broker beside it, which is the one of this build.
    if CABLEWAY_BROKER="$build/cablewayd" "$program" -max_total_time="$seconds" -timeout=10 -use_value_profile=1 -artifact_prefix="$build/$name-" "$corpus" ${seeds:+"$seeds"} >"$corpus.log" 2>&1; then
        grep -hE 'Seed:|DONE' "$corpus.log"
        echo "ok $number - $name"
    else
        tail -n 60 "$corpus.log"
        echo "not ok $number - $name"
        status=1
    fi
done
echo "1..$number"
exit $status
