#!/bin/sh
# Prints the options that link cableway-bridge with the archives of liburing and OpenSSL, so that nothing of the system's but
# the C library is needed at run time: static_libs.sh CC... OpenSSL's archive may want compression libraries, depending on how
# the distribution built it (Debian 13: zlib and zstd); pkg-config may be absent, so what links is asked of the linker.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/uses.c" <<'C'
#include <liburing.h>
#include <openssl/ssl.h>
int main(void) {
    struct io_uring ring;
    return SSL_CTX_new(TLS_method()) == NULL || io_uring_queue_init(4, &ring, 0) != 0;
}
C
base='-l:liburing.a -l:libssl.a -l:libcrypto.a'
for more in '' '-l:libz.a' '-l:libzstd.a' '-l:libz.a -l:libzstd.a'; do
    # shellcheck disable=SC2086,SC2048 # a compiler may be several words (ccache gcc)
    if ${*:-gcc} -o "$folder/uses" "$folder/uses.c" $base $more -ldl -pthread 2>"$folder/said"; then
        echo "$base${more:+ $more} -ldl -pthread"
        exit
    fi
done
echo "cableway: OpenSSL and liburing cannot be linked from their archives; the linker's last words:" >&2
grep -v '^collect2' "$folder/said" | tail -n 3 >&2
echo "$base -ldl -pthread"
