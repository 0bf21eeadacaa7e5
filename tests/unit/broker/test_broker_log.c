/*
 * The log: a flood of errors, whoever reads it, holds nobody up, and what it leaves out is counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/core/errors.h"
#include "broker/core/log.h"
#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define FLOOD       (getenv("CABLEWAY_SOAK") ? 100000u : 10000u) /* lines: a pipe holds some 500 */
#define BATCH       100u
#define PID_LINES   (5 * CWD_LOG_AT_ONCE)
#define PING_MOST_S 5 /* on a busy machine; who waited for a reader would wait for ever */

static struct raw_broker broker;
static struct raw_client client;

/* So many clients of this process that are dropped for a breach of the protocol: at most
 * max_clients, since they stay until it ends. */
static void be_dropped(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        struct raw_client bad;
        if (raw_connect(&broker, &bad) || raw_post(&bad, 9999, 1, NULL, 0) || !raw_dropped(&bad))
            _exit(1);
        raw_close(&bad);
    }
}

static pid_t dropped(unsigned count) {
    pid_t pid = fork();
    if (pid == 0) {
        be_dropped(count);
        _exit(0);
    }
    return pid;
}

/* Processes, one after the other, until so many clients were dropped. */
static pid_t flooder(unsigned count) {
    pid_t pid = fork();
    if (pid)
        return pid;
    for (unsigned done = 0; done < count; done += BATCH) {
        int status;
        pid_t one = dropped(BATCH);
        if (waitpid(one, &status, 0) != one || status != 0)
            _exit(1);
    }
    _exit(0);
}

static void ended_well(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Its longest answer while the flood goes on. */
static int64_t longest_ping_ns(pid_t pid) {
    int64_t longest = 0;
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        int64_t begun_ns = cw_now_ns();
        assert_int_equal(raw_ping(&client), 0);
        if (cw_now_ns() - begun_ns > longest)
            longest = cw_now_ns() - begun_ns;
    }
    assert_int_equal(status, 0);
    return longest;
}

/* All lines are written, far more than a pipe holds. */
static const char *const many_lines[] = {"CABLEWAY_MAX_LOG_LINES=1000000",
                                         "CABLEWAY_MAX_PID_LOG_LINES=1000000", NULL};

static void start(const char *const *environment) {
    assert_true(raw_broker_start(&broker, NULL, environment));
    assert_int_equal(raw_connect(&broker, &client), 0);
}

static void finish(void) {
    raw_bye(&client);
    raw_broker_remove(&broker);
}

/* The row of an error that holds these words. */
static struct cw_monitor_error *row_with(const char *words) {
    for (unsigned i = 0; i < CW_ERRORS_KEPT; i++) {
        if (strstr((const char *)broker.root->errors[i].text, words))
            return &broker.root->errors[i];
    }
    return NULL;
}

static void holds_nobody_up(void) {
    pid_t pid = flooder(FLOOD);
    assert_true(longest_ping_ns(pid) < PING_MOST_S * 1000000000LL);
    struct cw_monitor_error *row = row_with("dropped client");
    assert_non_null(row);
    assert_int_equal(CW_LOAD(M1, &row->count, relaxed), FLOOD);
    assert_true(CW_LOAD(M1, &row->pid, relaxed) > 0);
    assert_in_range(CW_LOAD(M1, &row->last_ns, relaxed), CW_LOAD(M1, &row->first_ns, relaxed) + 1,
                    UINT64_MAX);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_errors), FLOOD);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_errors_forgotten), 0);
    assert_in_range(raw_counter(&broker, CW_COUNTER_log_lines_left_out), FLOOD / 2, FLOOD);
}

static void a_pipe_that_nobody_reads_holds_nobody_up(void **state) {
    (void)state;
    start(many_lines); /* nobody reads its standard error: raw_broker_said() would */
    holds_nobody_up();
    finish();
}

static void a_pipe_whose_reader_is_stopped_holds_nobody_up(void **state) {
    (void)state;
    start(many_lines);
    pid_t reader = fork();
    if (reader == 0) {
        char byte;
        raise(SIGSTOP);
        while (read(broker.errors, &byte, 1) > 0)
            continue;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(reader, &status, WUNTRACED), reader);
    assert_true(WIFSTOPPED(status));
    holds_nobody_up();
    assert_int_equal(kill(reader, SIGKILL), 0);
    assert_int_equal(waitpid(reader, &status, 0), reader);
    finish();
}

static unsigned lines_with(const char *text, const char *words) {
    unsigned count = 0;
    while ((text = strstr(text, words))) {
        text += strlen(words);
        count++;
    }
    return count;
}

static void one_process_leaves_room_for_what_others_cause(void **state) {
    (void)state;
    char words[64];
    start(NULL);
    pid_t first = dropped(200);
    ended_well(first);
    snprintf(words, sizeof words, "(pid %d)", (int)first);
    /* Of so many lines some were written while the bucket filled again: at most one for each. */
    static char text[1 << 16];
    size_t used = 0;
    for (size_t more = 1; more && used < sizeof text - sizeof broker.said;) {
        broker.said_bytes = 0;
        more = (size_t)snprintf(text + used, sizeof text - used, "%s", raw_broker_said(&broker));
        used += more;
    }
    uint64_t left_out = raw_counter(&broker, CW_COUNTER_log_lines_left_out);
    assert_in_range(lines_with(text, words), PID_LINES, 199);
    assert_int_equal(lines_with(text, words) + left_out, 200);
    pid_t other = dropped(3);
    ended_well(other);
    broker.said_bytes = 0;
    snprintf(words, sizeof words, "(pid %d)", (int)other);
    assert_int_equal(lines_with(raw_broker_said(&broker), words), 3);
    if (!strstr(broker.said, "lines before this were left out") ||
        !strstr(broker.said, "max_pid_log_lines (5)"))
        fail_msg("nothing is said of what was left out: %s", broker.said);
    finish();
}

static void the_limits_of_lines_can_be_changed(void **state) {
    (void)state;
    static const char *const few[] = {"CABLEWAY_MAX_LOG_LINES=1", NULL};
    char words[64];
    assert_true(raw_broker_start(&broker, NULL, few));
    assert_int_equal(raw_connect(&broker, &client), 0);
    pid_t pid = dropped(100);
    ended_well(pid);
    snprintf(words, sizeof words, "(pid %d)", (int)pid);
    /* Others have said something before. */
    assert_in_range(lines_with(raw_broker_said(&broker), words), CWD_LOG_AT_ONCE / 2,
                    CWD_LOG_AT_ONCE + 30);
    finish();
}

/* ---- kinds ---- */

static struct cw_root page;

static unsigned rows(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < CW_ERRORS_KEPT; i++)
        count += CW_LOAD(M1, &page.errors[i].count, relaxed) != 0;
    return count;
}

static void texts_that_differ_in_numbers_are_one_kind(void **state) {
    (void)state;
    memset(&page, 0, sizeof page);
    cwd_errors_at(&page);
    for (unsigned i = 0; i < 1000; i++) {
        char text[80];
        snprintf(text, sizeof text, "client %u asked for %u of 5", i, i * i);
        cwd_errors_note((pid_t)i, text);
    }
    cwd_errors_note(7, "client a asked for b of 5");
    assert_int_equal(rows(), 2);
    assert_int_equal(CW_LOAD(M1, &page.errors[0].count, relaxed), 1000);
    assert_string_equal((const char *)page.errors[0].text, "client 999 asked for 998001 of 5");
    assert_int_equal(CW_LOAD(M1, &page.errors[0].pid, relaxed), 999);
    cwd_errors_at(NULL);
}

static void the_kind_met_longest_ago_makes_room_and_is_counted(void **state) {
    (void)state;
    char text[CW_ERROR_TEXT_BYTES + 100];
    memset(&page, 0, sizeof page);
    cwd_errors_at(&page);
    for (unsigned i = 0; i < CW_ERRORS_KEPT + 10; i++) {
        snprintf(text, sizeof text, "%.*s is one of many kinds", (int)i + 1,
                 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz");
        cwd_errors_note(1, text);
        cwd_errors_note(1, text);
        cwd_errors_note(1, "this one is met again and again");
    }
    assert_int_equal(rows(), CW_ERRORS_KEPT);
    assert_int_equal(page.counters[CW_COUNTER_errors], 3 * (CW_ERRORS_KEPT + 10));
    assert_int_equal(page.counters[CW_COUNTER_errors_forgotten], 2 * 11);
    unsigned found = 0;
    for (unsigned i = 0; i < CW_ERRORS_KEPT; i++)
        found += strcmp((const char *)page.errors[i].text, "this one is met again and again") == 0;
    assert_int_equal(found, 1);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    cwd_errors_note(1, text); /* longer than a row: cut, and terminated */
    for (unsigned i = found = 0; i < CW_ERRORS_KEPT; i++)
        found += strnlen((const char *)page.errors[i].text, CW_ERROR_TEXT_BYTES) ==
                 CW_ERROR_TEXT_BYTES - 1;
    assert_int_equal(found, 1);
    cwd_errors_at(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipe_that_nobody_reads_holds_nobody_up),
        cmocka_unit_test(a_pipe_whose_reader_is_stopped_holds_nobody_up),
        cmocka_unit_test(one_process_leaves_room_for_what_others_cause),
        cmocka_unit_test(the_limits_of_lines_can_be_changed),
        cmocka_unit_test(texts_that_differ_in_numbers_are_one_kind),
        cmocka_unit_test(the_kind_met_longest_ago_makes_room_and_is_counted),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
