/*
 * Numbers as people write them: in files, in variables of the environment and on command lines. One
 * form for all three.
 */
#ifndef CW_SHM_BASE_NUMBER_H
#define CW_SHM_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* A whole number: decimal digits and nothing else. False: it is none, or above 64 bits. */
bool cw_number_parse(const char *text, uint64_t *out);
/* A number of bytes: the same, and behind it KiB, MiB, GiB or TiB, with or without one space. */
bool cw_bytes_parse(const char *text, uint64_t *out);
/* The words for an error: what cw_bytes_parse() takes. */
#define CW_BYTES_FORM "a whole number of bytes, or one with KiB, MiB, GiB or TiB"

#endif
