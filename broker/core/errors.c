/*
 * Errors: see errors.h. The loop's thread alone writes. A reader may look at any time, also after
 * the broker's death in the middle of a row: such a row has count 0.
 *
 * Which kind a text is, its hash without digits tells. Whoever causes errors of ever new kinds
 * makes others forgotten, no more: that they were is counted.
 */
#include "broker/core/errors.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shm/names/directory.h"
#include "shm/session/monitor.h"

static struct {
    struct cw_root *root;
    struct {
        uint64_t kind, count;
        int64_t last_ns;
    } rows[CW_ERRORS_KEPT]; /* our own copy: count 0: empty */
} errors;

void cwd_errors_at(struct cw_root *root) {
    memset(&errors, 0, sizeof errors);
    errors.root = root;
}

bool cwd_is_error(int status) {
    return status == -EDQUOT || status == -EINVAL || status == -EPROTO || status == -EPERM;
}

static int64_t realtime_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t kind_of(const char *text) {
    char words[CW_ERROR_TEXT_BYTES];
    size_t length = 0;
    for (; *text && length < sizeof words; text++) {
        if (!isdigit((unsigned char)*text))
            words[length++] = *text;
    }
    return cw_directory_hash(words, length);
}

/* The row of a kind; else an empty one, or the one that was met last the longest time ago. */
static unsigned row_of(uint64_t kind) {
    unsigned oldest = 0;
    for (unsigned i = 0; i < CW_ERRORS_KEPT; i++) {
        if (errors.rows[i].count && errors.rows[i].kind == kind)
            return i;
        if (errors.rows[i].last_ns < errors.rows[oldest].last_ns)
            oldest = i;
    }
    return oldest;
}

static void add(enum cw_counter counter, uint64_t more) {
    (void)CW_ADD(M1, &errors.root->counters[counter], more, relaxed);
}

void cwd_errors_note(pid_t pid, const char *text) {
    uint64_t words[CW_ERROR_TEXT_BYTES / 8] = {0}, kind = kind_of(text);
    if (!errors.root)
        return;
    unsigned at = row_of(kind);
    struct cw_monitor_error *row = &errors.root->errors[at];
    int64_t now_ns = realtime_ns();
    if (errors.rows[at].count && errors.rows[at].kind != kind) {
        add(CW_COUNTER_errors_forgotten, errors.rows[at].count);
        errors.rows[at].count = 0;
    }
    add(CW_COUNTER_errors, 1);
    snprintf((char *)words, sizeof words, "%s", text);
    CW_STORE(M1, &row->count, 0, relaxed);
    if (errors.rows[at].count == 0)
        CW_STORE(M1, &row->first_ns, (uint64_t)now_ns, relaxed);
    CW_STORE(M1, &row->last_ns, (uint64_t)now_ns, relaxed);
    CW_STORE(M1, &row->pid, (uint32_t)pid, relaxed);
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        CW_STORE(M1, &row->text[i], words[i], relaxed);
    errors.rows[at].kind = kind;
    errors.rows[at].last_ns = now_ns;
    /* M2: the count comes last, so that who finds it finds the rest. */
    CW_STORE(M2, &row->count, ++errors.rows[at].count, release);
}

void cwd_errors_line_left_out(void) {
    if (errors.root)
        add(CW_COUNTER_log_lines_left_out, 1);
}
