/*
 * Errors of the broker: see errors.h. The broker writes the rows, at any time; one that is written
 * meanwhile is read again, and left out if the broker died in the middle of it.
 */
#include "tools/watch/errors.h"

#include <stdlib.h>
#include <string.h>

#include "tools/monitor.h"

#define COPY_TRIES 100u

static bool copy_row(struct cw_monitor_error *row, struct error_row *out) {
    for (unsigned tries = 0; tries < COPY_TRIES; tries++) {
        uint64_t words[CW_ERROR_TEXT_BYTES / 8];
        *out = (struct error_row){.count = CW_LOAD(MON, &row->count, acquire)};
        out->first_ns = monitor_word(&row->first_ns);
        out->last_ns = monitor_word(&row->last_ns);
        out->pid = CW_LOAD(MON, &row->pid, relaxed);
        for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
            words[i] = monitor_word(&row->text[i]);
        memcpy(out->text, words, sizeof out->text);
        out->text[sizeof out->text - 1] = 0;
        if (out->count && out->count == monitor_word(&row->count))
            return true;
    }
    return false;
}

static int last_first(const void *a, const void *b) {
    const struct error_row *first = a, *second = b;
    return (first->last_ns < second->last_ns) - (first->last_ns > second->last_ns);
}

unsigned errors_copy(struct cw_root *root, struct error_row out[CW_ERRORS_KEPT]) {
    unsigned count = 0;
    for (unsigned i = 0; i < CW_ERRORS_KEPT; i++)
        count += copy_row(&root->errors[i], &out[count]);
    qsort(out, count, sizeof *out, last_first);
    return count;
}
