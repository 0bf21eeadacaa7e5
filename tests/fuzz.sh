#!/bin/sh
# Builds and runs each libFuzzer program for some seconds: fuzz.sh SECONDS. Prints TAP; the seed stands in the log.
set -u
seconds=${1:-60}
build=${CAUSEWAY_BUILD:?}
status=0
number=0
for source in tests/fuzz/*.c; do
    number=$((number + 1))
    name=$(basename "$source" .c)
    program="$build/tests/fuzz/$name"
    corpus="$build/tests/fuzz/corpus-$name"
    if ! command -v clang >/dev/null; then
        echo "ok $number - $name # SKIP no clang"
        continue
    fi
    mkdir -p "$corpus"
    if make -s BUILD="$build" "$program" 2>&1 &&
        "$program" -max_total_time="$seconds" -timeout=10 -artifact_prefix="$build/tests/fuzz/$name-" "$corpus" >"$corpus.log" 2>&1; then
        grep -hE 'Done|DONE|Seed' "$corpus.log"
        echo "ok $number - $name"
    else
        tail -n 60 "$corpus.log"
        echo "not ok $number - $name"
        status=1
    fi
done
echo "1..$number"
exit $status
