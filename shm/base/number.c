/*
 * Numbers as people write them: see number.h. No state.
 */
#include "shm/base/number.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Digits, and where they end. */
static bool parse_digits(const char *text, uint64_t *out, const char **rest) {
    char *end;
    if (*text < '0' || *text > '9') /* strtoull() takes signs and space, too */
        return false;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    *out = number;
    *rest = end;
    return errno == 0;
}

bool cw_number_parse(const char *text, uint64_t *out) {
    uint64_t number;
    const char *rest;
    if (!parse_digits(text, &number, &rest) || *rest)
        return false;
    *out = number;
    return true;
}

bool cw_bytes_parse(const char *text, uint64_t *out) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    uint64_t number;
    const char *rest;
    if (!parse_digits(text, &number, &rest))
        return false;
    if (!*rest) {
        *out = number;
        return true;
    }
    rest += *rest == ' ';
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        unsigned bits = 10 * (i + 1);
        if (strcmp(rest, units[i]) != 0 || number > UINT64_MAX >> bits)
            continue;
        *out = number << bits;
        return true;
    }
    return false;
}
