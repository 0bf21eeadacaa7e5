/*
 * Digests: SHA-256 of bytes that another node than their owner sends. What XXH3 is for (checksum.h)
 * is chance; this is for who would choose the bytes.
 */
#ifndef CW_BROKER_BRIDGE_TLS_DIGEST_H
#define CW_BROKER_BRIDGE_TLS_DIGEST_H

#include <stdbool.h>
#include <stdint.h>

/* Some 1 ms for each MiB. Any thread. 0, or -EDQUOT: there is no memory for it. */
int cwb_digest(const void *bytes, uint64_t size_bytes, uint8_t out[32]);
/* Secrets and digests: how long it takes tells nothing of them. */
bool cwb_same_bytes(const void *a, const void *b, uint32_t size_bytes);
/* Random bytes that nobody can guess. 0 or -EDQUOT. */
int cwb_secret(void *out, uint32_t size_bytes);

#endif
