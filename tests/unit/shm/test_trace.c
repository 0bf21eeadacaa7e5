/*
 * The promises of shm/base/trace_ring.h and trace.h: a reader has whole events or none, whoever
 * writes meanwhile or is killed; what never crossed leaves nothing; a forked child has its own
 * trace; and nothing that lies in a trace leads a reader outside.
 */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sched.h>
#include <sys/mman.h>

#include "shm/base/trace.h"
#include "shm/base/trace_ring.h"
#include "tests/support.h"

#define WRITERS 4
#define EACH    20000u

static struct cw_trace *trace; /* shared with children */

static void clear(void) {
    memset(trace, 0, sizeof *trace);
}

static struct cw_trace_record made(uint64_t number, int64_t duration_ns) {
    return (struct cw_trace_record){.kind = CW_TRACE_TASK,
                                    .tid = 7,
                                    .begun_ns = (int64_t)number + 1,
                                    .duration_ns = duration_ns,
                                    .subject = number,
                                    .number = ~number,
                                    .bytes = number * 3};
}

/* An event that one of the tests wrote, as it was written. */
static void assert_whole(const struct cw_trace_record *record) {
    uint64_t number = record->subject;
    char name[CW_TRACE_NAME_MAX];
    assert_int_equal(record->kind, CW_TRACE_TASK);
    assert_int_equal(record->begun_ns, (int64_t)number + 1);
    assert_int_equal(record->number, ~number);
    assert_int_equal(record->bytes, number * 3);
    if (record->name_bytes == 0)
        return;
    int length = snprintf(name, sizeof name, "name %llu", (unsigned long long)number);
    assert_int_equal(record->name_bytes, length);
    assert_memory_equal(record->name, name, (size_t)length);
}

static void write_number(uint64_t number) {
    char name[32];
    struct cw_trace_record record = made(number, number % 3 == 0 ? 2 * CW_TRACE_LONG_NS : 1);
    if (number % 2) {
        int length = snprintf(name, sizeof name, "name %llu", (unsigned long long)number);
        cw_trace_name(&record, name, (size_t)length);
    }
    cw_trace_add(trace, &record);
}

/* Looks at all places; returns how many events there are. */
static unsigned read_all(void) {
    unsigned found = 0;
    for (unsigned ring = 0; ring < 2; ring++) {
        uint64_t count = cw_trace_count(trace, ring);
        uint64_t first = count > CW_TRACE_EVENTS ? count - CW_TRACE_EVENTS : 0;
        for (uint64_t at = first; at < count; at++) {
            struct cw_trace_record record;
            if (!cw_trace_read(trace, ring, at, &record))
                continue;
            assert_whole(&record);
            assert_int_equal(record.duration_ns >= CW_TRACE_LONG_NS, ring);
            found++;
        }
    }
    return found;
}

static void what_is_written_is_read(void **state) {
    (void)state;
    struct cw_trace_record record = made(5, 1), read;
    clear();
    cw_trace_name(&record, "weights/1", 9);
    cw_trace_add(trace, &record);
    record.duration_ns = CW_TRACE_LONG_NS;
    record.name_bytes = 0;
    cw_trace_add(trace, &record);
    assert_true(cw_trace_read(trace, 0, 0, &read));
    assert_int_equal(read.name_bytes, 9);
    assert_memory_equal(read.name, "weights/1", 9);
    assert_int_equal(read.tid, 7);
    assert_false(cw_trace_read(trace, 0, 1, &read)); /* the name's place */
    assert_true(cw_trace_read(trace, 1, 0, &read));  /* long ones have their own ring */
    assert_int_equal(read.name_bytes, 0);
    assert_false(cw_trace_read(trace, 1, 1, &read));
}

static void of_a_long_name_the_end_is_kept(void **state) {
    (void)state;
    struct cw_trace_record record = {.kind = CW_TRACE_GET};
    char name[300];
    for (size_t i = 0; i + 1 < sizeof name; i += 2)
        memcpy(name + i, "\xc3\xa4", 2); /* one character */
    cw_trace_name(&record, name, sizeof name);
    assert_true(record.name_bytes <= CW_TRACE_NAME_MAX);
    assert_memory_equal(record.name, "...\xc3\xa4\xc3\xa4", 7); /* whole characters */
    memset(name, 'x', sizeof name);
    cw_trace_name(&record, name, CW_TRACE_NAME_MAX);
    assert_int_equal(record.name_bytes, CW_TRACE_NAME_MAX);
    assert_memory_equal(record.name, name, CW_TRACE_NAME_MAX);
}

static void the_last_events_are_there(void **state) {
    (void)state;
    struct cw_trace_record record;
    clear();
    for (uint64_t i = 0; i < 3 * CW_TRACE_EVENTS + 5; i++)
        cw_trace_add(trace, &(struct cw_trace_record){.kind = CW_TRACE_WAKE, .subject = i});
    uint64_t count = cw_trace_count(trace, 0);
    assert_int_equal(count, 3 * CW_TRACE_EVENTS + 5);
    for (uint64_t at = count - CW_TRACE_EVENTS; at < count; at++) {
        assert_true(cw_trace_read(trace, 0, at, &record));
        assert_int_equal(record.subject, at);
    }
    assert_false(cw_trace_read(trace, 0, count - CW_TRACE_EVENTS - 1, &record));
}

static void what_is_under_way_is_shown_until_it_ends(void **state) {
    (void)state;
    struct cw_trace_record record = made(1, 0), read;
    int places[CW_TRACE_UNDER_WAY];
    clear();
    for (unsigned i = 0; i < CW_TRACE_UNDER_WAY; i++) {
        places[i] = cw_trace_begun(trace, &record);
        assert_true(places[i] >= 0);
    }
    assert_int_equal(cw_trace_begun(trace, &record), -1);
    assert_int_equal(atomic_load(&trace->lost), 1);
    assert_true(cw_trace_read_under_way(trace, 9, &read));
    assert_whole(&read);
    cw_trace_ended(trace, 9);
    assert_false(cw_trace_read_under_way(trace, 9, &read));
    assert_int_equal(cw_trace_begun(trace, &record), 9);
    cw_trace_ended(trace, -1);
    cw_trace_ended(trace, (int)CW_TRACE_UNDER_WAY); /* no place */
}

static void functions_have_names(void **state) {
    (void)state;
    struct cw_trace_record read;
    clear();
    cw_trace_function(trace, 3, "main.square", 11);
    cw_trace_function(trace, 3 + CW_TRACE_FUNCTIONS, "main.cube", 9); /* takes its place */
    assert_true(cw_trace_read_function(trace, 3, &read));
    assert_int_equal(read.function, 3 + CW_TRACE_FUNCTIONS);
    assert_memory_equal(read.name, "main.cube", 9);
}

static void *write_many(void *context) {
    uint64_t first = (uint64_t)(uintptr_t)context;
    for (uint64_t i = 0; i < EACH; i++)
        write_number(first * EACH + i);
    return NULL;
}

static void threads_write_and_all_that_is_read_is_whole(void **state) {
    (void)state;
    pthread_t threads[WRITERS];
    clear();
    for (uintptr_t i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)i), 0);
    for (unsigned looks = 0; looks < 200; looks++)
        read_all();
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    assert_true(read_all() > CW_TRACE_EVENTS / 2);
}

static void a_killed_writer_costs_a_place(void **state) {
    (void)state;
    struct chance chance = chance_init(2);
    unsigned kills = 40;
    clear();
    for (unsigned i = 0; i < kills; i++) {
        pid_t child = fork();
        if (child == 0)
            for (uint64_t number = 0;; number++)
                write_number(number);
        struct timespec pause = {.tv_nsec = (long)chance_below(&chance, 1000000)};
        nanosleep(&pause, NULL);
        read_all();
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        read_all();
    }
    for (uint64_t number = 0; number < 4 * CW_TRACE_EVENTS; number++)
        write_number(number);
    unsigned busy = 0;
    for (unsigned ring = 0; ring < 2; ring++)
        for (unsigned i = 0; i < CW_TRACE_EVENTS; i++)
            busy += (atomic_load(&trace->events[ring][i].mark) & 3) == 1;
    assert_true(busy <= kills);
    assert_true(read_all() > CW_TRACE_EVENTS / 2);
}

static void random_bytes_lead_nowhere(void **state) {
    (void)state;
    struct chance chance = chance_init(3);
    struct cw_trace_record record;
    for (unsigned round = 0; round < 20; round++) {
        uint64_t *words = (uint64_t *)(void *)trace;
        for (size_t i = 0; i < sizeof *trace / 8; i++)
            words[i] = chance_next(&chance);
        for (unsigned ring = 0; ring < 2; ring++) {
            uint64_t count = cw_trace_count(trace, ring);
            for (uint64_t at = count - CW_TRACE_EVENTS; at != count; at++) {
                /* Marks that a reader believes. */
                atomic_store(&trace->events[ring][at % CW_TRACE_EVENTS].mark,
                             at << 2 | (2 + at % 2));
                if (cw_trace_read(trace, ring, at, &record))
                    assert_true(record.name_bytes <= CW_TRACE_NAME_MAX);
            }
        }
        for (unsigned i = 0; i < CW_TRACE_UNDER_WAY; i++) {
            atomic_store(&trace->under_way[i].mark, chance_next(&chance) << 2 | 2);
            assert_true(cw_trace_read_under_way(trace, i, &record));
            assert_true(record.name_bytes <= CW_TRACE_NAME_MAX);
        }
        write_many((void *)1); /* and who writes there goes on */
        record = made(1, 0);
        cw_trace_ended(trace, cw_trace_begun(trace, &record));
    }
}

/* ---- the process's own ---- */

/* How many descriptors of this process are traces; *fd: the last one. */
static unsigned own_traces(int *fd) {
    char path[300], link[300];
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        if (strncmp(link, "/memfd:cw-trace ", 16) == 0) {
            count++;
            *fd = atoi(entry->d_name);
        }
    }
    closedir(folder);
    return count;
}

static uint64_t own_events(void) {
    int fd = -1;
    assert_int_equal(own_traces(&fd), 1);
    struct cw_trace *own = mmap(NULL, sizeof *own, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(own != MAP_FAILED);
    assert_int_equal(own->pid, getpid());
    uint64_t events = cw_trace_count(own, 0) + cw_trace_count(own, 1);
    munmap(own, sizeof *own);
    return events;
}

static void a_span_that_never_began_leaves_nothing(void **state) {
    (void)state;
    struct cw_trace_span outer = {.kind = CW_TRACE_GET}, inner = {.kind = CW_TRACE_QUEUE_GET};
    cw_trace_moment(CW_TRACE_WAKE, 0, 0); /* makes the trace */
    uint64_t before = own_events();
    cw_trace_enter(&outer);
    cw_trace_enter(&inner);
    cw_trace_leave(&inner, false);
    cw_trace_leave(&outer, false);
    assert_int_equal(own_events(), before);
    cw_trace_enter(&outer);
    cw_trace_enter(&inner);
    cw_trace_sleeps();
    cw_trace_leave(&inner, false);
    cw_trace_leave(&outer, true);
    assert_int_equal(own_events(), before + 2);
}

/* How many calls under way this process shows; *out: the last one. */
static unsigned own_under_way(struct cw_trace_record *out) {
    int fd = -1;
    unsigned count = 0;
    own_traces(&fd);
    struct cw_trace *own = mmap(NULL, sizeof *own, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(own != MAP_FAILED);
    for (unsigned i = 0; i < CW_TRACE_UNDER_WAY; i++)
        count += cw_trace_read_under_way(own, i, out);
    munmap(own, sizeof *own);
    return count;
}

static void wait_part(uint64_t subject, int code) {
    struct cw_trace_span span = {.kind = CW_TRACE_QUEUE_GET, .subject = subject};
    cw_trace_enter(&span);
    cw_trace_sleeps();
    cw_trace_leave_wait(&span, CW_TRACE_PART_NS, code);
}

static void parts_of_a_wait_are_one_call(void **state) {
    (void)state;
    struct cw_trace_record first, now;
    cw_trace_moment(CW_TRACE_WAKE, 0, 0);
    uint64_t before = own_events();
    wait_part(1, -ETIMEDOUT);
    assert_int_equal(own_events(), before); /* it rests */
    assert_int_equal(own_under_way(&first), 1);
    assert_true(first.duration_ns > 0);
    for (unsigned i = 0; i < 2 * CW_TRACE_UNDER_WAY; i++)
        wait_part(1, i % 2 ? -ETIMEDOUT : -EINTR);
    assert_int_equal(own_events(), before);
    assert_int_equal(own_under_way(&now), 1);
    assert_int_equal(now.begun_ns, first.begun_ns);
    assert_true(now.duration_ns > first.duration_ns);
    wait_part(1, 0);
    assert_int_equal(own_events(), before + 1);
    assert_int_equal(own_under_way(&now), 0);
    wait_part(1, -ETIMEDOUT);
    wait_part(2, -EPIPE); /* another wait, which fails */
    assert_int_equal(own_events(), before + 3);
    assert_int_equal(own_under_way(&now), 0);
}

static void *wait_and_end(void *context) {
    wait_part((uint64_t)(uintptr_t)context, -ETIMEDOUT);
    return NULL;
}

static void threads_that_ended_while_a_wait_rests_keep_no_place(void **state) {
    (void)state;
    struct cw_trace_record record;
    cw_trace_moment(CW_TRACE_WAKE, 0, 0);
    wait_part(1, -ETIMEDOUT);
    for (uintptr_t i = 0; i < 2 * CW_TRACE_UNDER_WAY; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wait_and_end, (void *)(i + 2)), 0);
        pthread_join(thread, NULL);
    }
    assert_int_equal(own_under_way(&record), CW_TRACE_UNDER_WAY);
    uint64_t before = own_events();
    wait_part(1, 0); /* its place is another's by now, and it is whole nevertheless */
    assert_int_equal(own_events(), before + 1);
    assert_true(own_under_way(&record) >= CW_TRACE_UNDER_WAY - 1);
}

/* Sleeps as often as a thread does that is traced now and then; how many of them quietly. */
static unsigned sleep_often(struct cw_bell *bell) {
    unsigned quiet = 0;
    for (unsigned i = 0; i < 1000; i++) {
        struct cw_trace_span span = {.kind = CW_TRACE_QUEUE_GET};
        cw_trace_enter(&span);
        cw_bell_sleep(bell, cw_bell_announce(bell) + 1, -1); /* ends at once */
        quiet += span.quiet;
        cw_trace_leave(&span, false);
    }
    return quiet;
}

static void a_thread_that_sleeps_all_the_time_is_traced_now_and_then(void **state) {
    (void)state;
    struct cw_bell bell = {0};
    struct cw_trace_record record;
    cw_trace_moment(CW_TRACE_WAKE, 0, 0);
    uint64_t before = own_events();
    unsigned quiet = sleep_often(&bell);
    assert_true(quiet >= 500 && quiet < 1000); /* a slow machine: 8 in 2 ms */
    assert_int_equal(own_events(), before + 1000 - quiet);
    assert_int_equal(own_under_way(&record), 0);
    struct cw_trace_span span = {.kind = CW_TRACE_QUEUE_GET};
    do {
        cw_trace_enter(&span);
    } while (cw_bell_sleep(&bell, 0, 1000) == -ETIMEDOUT && !span.quiet &&
             (cw_trace_leave(&span, false), true));
    cw_trace_leave(&span, false); /* too short to be shown */
    assert_int_equal(own_under_way(&record), 0);
}

static void *sleep_often_then_long(void *bell) {
    struct cw_trace_span span = {.kind = CW_TRACE_QUEUE_GET, .subject = 77};
    sleep_often(bell);
    cw_trace_enter(&span);
    int code = cw_bell_sleep(bell, cw_bell_announce(bell), -1);
    cw_trace_leave(&span, code < 0);
    return code == 0 ? bell : NULL;
}

static void its_sleep_that_lasts_is_shown_since_it_began(void **state) {
    (void)state;
    struct cw_bell bell = {0};
    struct cw_trace_record record;
    pthread_t thread;
    void *result;
    cw_trace_moment(CW_TRACE_WAKE, 0, 0);
    int64_t begun_ns = cw_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, sleep_often_then_long, &bell), 0);
    while (own_under_way(&record) == 0 || record.subject != 77) {
        assert_true(cw_now_ns() - begun_ns < 20000000000);
        sched_yield();
    }
    assert_true(record.begun_ns >= begun_ns && record.begun_ns <= cw_now_ns());
    uint64_t before = own_events();
    cw_bell_wake(&bell);
    pthread_join(thread, &result);
    assert_ptr_equal(result, &bell);
    assert_true(own_events() >= before + 1);
    assert_int_equal(own_under_way(&record), 0);
}

static void a_quiet_sleep_of_known_times_is_noted(void **state) {
    (void)state;
    struct cw_bell bell = {0};
    cw_trace_moment(CW_TRACE_WAKE, 0, 0);
    for (unsigned i = 0; i < 2; i++) {
        struct cw_trace_span span = {.kind = CW_TRACE_IDLE};
        sleep_often(&bell);
        do {
            cw_trace_enter(&span);
            cw_bell_sleep(&bell, 1, -1);
        } while (!span.quiet && (cw_trace_leave(&span, false), true));
        uint64_t before = own_events();
        span.since_ns = 1000;
        cw_trace_leave_at(&span, false, 1000 + CW_TRACE_SHORT_NS - (int64_t)i);
        assert_int_equal(own_events(), before + 1 - i);
    }
}

static void a_forked_child_has_its_own_trace(void **state) {
    (void)state;
    struct cw_trace_span span = {.kind = CW_TRACE_GET};
    cw_trace_moment(CW_TRACE_WAKE, 0, 0);
    uint64_t before = own_events();
    cw_trace_enter(&span);
    cw_trace_sleeps();
    pid_t child = fork();
    if (child == 0) {
        int fd;
        bool good = own_traces(&fd) == 0; /* the parent's is not the child's */
        cw_trace_leave(&span, false);
        good = good && own_traces(&fd) == 0; /* what began in the parent is not noted */
        cw_trace_moment(CW_TRACE_WAKE, 0, 0);
        _exit(good && own_events() == 1 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(own_events(), before);
    cw_trace_leave(&span, false);
    assert_int_equal(own_events(), before + 1);
}

static void there_is_none_where_it_is_not_wanted(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        int fd;
        setenv("CABLEWAY_TRACE", "0", 1);
        (void)cw_fail(-EINVAL, "told before");
        errno = EPIPE;
        struct cw_trace_span span = {.kind = CW_TRACE_GET};
        cw_trace_enter(&span);
        cw_trace_sleeps();
        cw_trace_leave(&span, true);
        cw_trace_moment(CW_TRACE_WAKE, 0, 0);
        bool kept = errno == EPIPE && strcmp(cw_detail(), "told before") == 0;
        _exit(kept && own_traces(&fd) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(of_a_long_name_the_end_is_kept),
        cmocka_unit_test(the_last_events_are_there),
        cmocka_unit_test(what_is_under_way_is_shown_until_it_ends),
        cmocka_unit_test(functions_have_names),
        cmocka_unit_test(threads_write_and_all_that_is_read_is_whole),
        cmocka_unit_test(a_killed_writer_costs_a_place),
        cmocka_unit_test(random_bytes_lead_nowhere),
        cmocka_unit_test(a_span_that_never_began_leaves_nothing),
        cmocka_unit_test(a_thread_that_sleeps_all_the_time_is_traced_now_and_then),
        cmocka_unit_test(its_sleep_that_lasts_is_shown_since_it_began),
        cmocka_unit_test(a_quiet_sleep_of_known_times_is_noted),
        cmocka_unit_test(a_forked_child_has_its_own_trace),
        cmocka_unit_test(parts_of_a_wait_are_one_call),
        cmocka_unit_test(threads_that_ended_while_a_wait_rests_keep_no_place),
        cmocka_unit_test(there_is_none_where_it_is_not_wanted),
    };
    trace = mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return trace == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
