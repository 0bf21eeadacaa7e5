/*
 * Digests: see digest.h. Keeps nothing.
 */
#include "broker/bridge/tls/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "shm/base/error.h"

int cwb_digest(const void *bytes, uint64_t size_bytes, uint8_t out[32]) {
    return EVP_Digest(bytes, size_bytes, out, NULL, EVP_sha256(), NULL) == 1
               ? 0
               : cw_fail(-EDQUOT, "no memory for the digest of an array");
}

bool cwb_same_bytes(const void *a, const void *b, uint32_t size_bytes) {
    return CRYPTO_memcmp(a, b, size_bytes) == 0;
}

int cwb_secret(void *out, uint32_t size_bytes) {
    return RAND_bytes(out, (int)size_bytes) == 1 ? 0
                                                 : cw_fail(-EDQUOT, "no random bytes for a secret");
}
