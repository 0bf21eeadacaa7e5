/*
 * Consumers of fence_deaths: two a job, who read what a producer wrote that was killed, and what
 * the other computed from it.
 */
#include "tests/gpu/deaths.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

const char *const moment_names[] = {"before its work", "in its section", "in its work",
                                    "after its work", "at any time"};

struct board *board;
static struct part none;
struct part *part = &none;
int round_now;

void ok(int code, const char *what) {
    if (code < 0)
        test_fail("job %d round %d (killed %s): %s: %d, %s", board->job, round_now,
                  moment_names[part->moment], what, code, cw_error());
}

void pause_ns(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

void await(_Atomic int *word, int value, const char *what) {
    int64_t end_ns = test_now_ns() + ROUND_NS;
    while (atomic_load(word) != value) {
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d (killed %s%s): %s: a hang", board->job, round_now,
                      moment_names[part->moment], part->forks ? ", a child lives" : "", what);
        pause_ns(100000);
    }
}

void name_of(char out[64], const char *what) {
    snprintf(out, 64, "job%d/round%d/%s", board->job, round_now, what);
}

cw_array *make(cw_client *client) {
    int64_t shape = WORDS;
    cw_layout layout = {.ndim = 1, .itemsize = 4, .shape = &shape, .dtype = "<u4"};
    cw_array *array;
    ok(cw_array_new(client, "cuda:0", &layout, 0, &array), "cw_array_new");
    return array;
}

CUdeviceptr at(cw_array *array) {
    return (CUdeviceptr)(uintptr_t)cw_array_data(array);
}

void put(cw_array *array, const char *what) {
    char name[64];
    name_of(name, what);
    ok(cw_array_put(array, name, 0, NULL, 0), "cw_array_put");
}

cw_array *get(cw_client *client, const char *what) {
    char name[64];
    cw_array *array;
    name_of(name, what);
    ok(cw_wait(client, name, LIMIT_NS), "cw_wait");
    ok(cw_get(client, name, 0, &array), "cw_get");
    return array;
}

/* A child that ends with this process. */

/* ---- consumers ---- */

struct consumer {
    cw_client *client;
    CUstream stream;
    CUdeviceptr copy;
    uint32_t *host;
    cw_array *good;
};

/* Was the stream's work spoilt? The next call tells. */
static bool told_next(struct consumer *c) {
    int code = cw_array_reading_begin(c->good, c->stream, LIMIT_NS);
    if (code == -EOWNERDEAD)
        return true;
    ok(code, "reading what is good");
    code = cw_array_reading_end(c->good, c->stream);
    if (code != -EOWNERDEAD)
        ok(code, "the end of reading what is good");
    return code == -EOWNERDEAD;
}

/* Copies an array out in order, and asks by the section's completion. True: it is no good. */
static bool look(struct consumer *c, cw_array *array, uint32_t *value) {
    int code = cw_array_reading_begin(array, c->stream, LIMIT_NS);
    if (code == -EOWNERDEAD)
        return true;
    ok(code, "cw_array_reading_begin");
    CU(cuMemcpyDtoDAsync(c->copy, at(array), WORDS * 4, c->stream));
    cw_completion completion;
    int ended = cw_array_reading_finish(array, c->stream, &completion);
    if (ended != -EOWNERDEAD)
        ok(ended, "cw_array_reading_finish");
    code = cw_completion_wait(c->client, &completion, LIMIT_NS);
    if (code == -EOWNERDEAD)
        return true;
    ok(code, "cw_completion_wait");
    if (ended || told_next(c))
        test_fail("job %d round %d (killed %s): the wait said that all is complete, %s told a "
                  "death",
                  board->job, round_now, moment_names[part->moment],
                  ended ? "the end" : "the next call");
    CU(cuMemcpyDtoHAsync(c->host, c->copy, WORDS * 4, c->stream));
    test_finish(c->stream);
    for (uint32_t i = 1; i < WORDS; i++)
        if (c->host[i] != c->host[0])
            test_fail("job %d round %d (killed %s): word %u is %u, word 0 is %u, and nobody told",
                      board->job, round_now, moment_names[part->moment], i, c->host[i], c->host[0]);
    *value = c->host[0];
    return false;
}

/* y = x + x, in order. True: it was computed, whatever from. */
static bool compute(struct consumer *c, cw_array *x, cw_array *y, bool *told) {
    int code = cw_array_reading_begin(x, c->stream, LIMIT_NS);
    *told = code == -EOWNERDEAD;
    if (*told)
        return false;
    ok(code, "cw_array_reading_begin of x");
    code = cw_array_writing_begin(y, c->stream, LIMIT_NS);
    bool begun = code != -EOWNERDEAD;
    *told = !begun;
    if (begun) {
        ok(code, "cw_array_writing_begin of y");
        test_add(c->stream, at(y), at(x), at(x), WORDS);
        code = cw_array_writing_end(y, c->stream, 1);
        *told = code == -EOWNERDEAD;
        if (!*told)
            ok(code, "cw_array_writing_end of y");
    }
    int ended = cw_array_reading_end(x, c->stream);
    if (ended != -EOWNERDEAD)
        ok(ended, "cw_array_reading_end of x");
    *told = *told || ended == -EOWNERDEAD;
    return begun;
}

static void judge(bool told, uint32_t value, uint32_t factor, const char *what) {
    bool whole = part->moment == AFTER_WORK, either = part->moment == ANY_TIME;
    if (!either && told == whole)
        test_fail("job %d round %d (killed %s%s): who read %s was %s", board->job, round_now,
                  moment_names[part->moment], part->forks ? ", a child lives" : "", what,
                  told ? "told a death, but it was complete" : "told nothing");
    if (!told && value != FIRST * factor && !(either && value >= LOOP_BEGIN * factor))
        test_fail("job %d round %d (killed %s): %s holds %u", board->job, round_now,
                  moment_names[part->moment], what, value);
}

static void first_consumer(struct consumer *c) {
    bool told;
    cw_array *x = get(c->client, "x"), *y = make(c->client);
    bool computed = compute(c, x, y, &told);
    if (computed)
        put(y, "y");
    atomic_store(&board->computed, computed ? 1 : 2);
    test_finish(c->stream);
    told = told_next(c) || told;
    judge(told, FIRST, 1, "x");
    cw_array_close(x);
    cw_array_close(y);
}

static void second_consumer(struct consumer *c) {
    uint32_t value = FIRST;
    cw_array *x = get(c->client, "x");
    bool told = look(c, x, &value);
    judge(told, value, 1, "x");
    cw_array_close(x);
    int64_t end_ns = test_now_ns() + ROUND_NS;
    while (!atomic_load(&board->computed)) {
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d: no word from the first consumer", board->job, round_now);
        pause_ns(100000);
    }
}

static void look_at_result(struct consumer *c) {
    uint32_t value = 2 * FIRST;
    if (board->computed == 2)
        return;
    cw_array *y = get(c->client, "y");
    bool told = look(c, y, &value);
    judge(told, value, 2, "y, computed from x,");
    cw_array_close(y);
}

static void remove_names(struct consumer *c) {
    static const char *const all[] = {"good", "x", "y"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        name_of(name, all[i]);
        int code = cw_remove(c->client, name);
        if (code != -ENOENT)
            ok(code, "cw_remove");
    }
}

/* False: there are no more. */
static bool await_round(int round) {
    int64_t end_ns = test_now_ns() + ROUND_NS;
    int now;
    while ((now = atomic_load(&board->round)) != round && now >= 0) {
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d: it does not begin", board->job, round);
        pause_ns(100000);
    }
    return now == round;
}

void consume(int which, int rounds) {
    struct consumer c;
    uint32_t value;
    test_cuda_start();
    c.stream = test_stream();
    CU(cuMemAlloc(&c.copy, WORDS * 4));
    CU(cuMemHostAlloc((void **)&c.host, WORDS * 4, 0));
    ok(cw_connect(NULL, NULL, 0, &c.client), "cw_connect");
    for (int round = 1; round <= rounds; round++) {
        round_now = round;
        if (!await_round(round))
            break;
        part = &board->parts[round % AHEAD];
        c.good = get(c.client, "good");
        if (which == 0)
            first_consumer(&c);
        else {
            second_consumer(&c);
            look_at_result(&c);
        }
        if (look(&c, c.good, &value) || value != GOOD)
            test_fail("job %d round %d: what was complete is no good any more", board->job, round);
        cw_array_close(c.good);
        atomic_store(&board->done[which], round);
        if (which == 0) {
            await(&board->done[1], round, "the second consumer");
            remove_names(&c);
        }
    }
    await(&board->round, -1, "the end of the job");
    cw_client_unref(c.client);
    _exit(0);
}
