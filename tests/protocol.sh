#!/bin/sh
# The walk at random through the local protocol (tests/crash/crash_protocol.c) with a broker that is built with
# AddressSanitizer and UndefinedBehaviorSanitizer: protocol.sh SECONDS. Prints TAP.
set -u
build=${CABLEWAY_BUILD:?}
if ! make -s -j"$(nproc)" BUILD="$build/protocol" OPT='-O1 -g -fno-omit-frame-pointer -Wno-format-truncation -Wno-maybe-uninitialized' \
    SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined' "$build/protocol/cablewayd"; then
    echo "not ok 1 - the broker is built with sanitizers"
    echo "1..1"
    exit 1
fi
CABLEWAY_PROTOCOL_SECONDS=${1:-60} CABLEWAY_BROKER=$build/protocol/cablewayd exec "$build/tests/crash/crash_protocol"
