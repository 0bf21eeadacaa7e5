/*
 * Warm get and close of a named array in C, with 100 and with 100,000 names in the directory,
 * alternated in one process; names are taken in turn from a set spread over all of them, so that
 * with many names the caches of the processor do not hold the whole directory. A get that hits the
 * same name over and over is told apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"
#include "tools/bench/programs/scratch.h"

#define FEW   100u
#define MANY  100000u
#define SPOTS 100u /* names that are taken in turn */

static void put_names(cw_client *client, unsigned count) {
    int64_t shape = 4;
    cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = &shape, .dtype = "<f8"};
    cw_array *array;
    bench_need(cw_array_new(client, "cpu", &layout, CW_ZERO, &array), "allocate");
    for (unsigned i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "bench/%u", i);
        *(uint64_t *)cw_array_data(array) = 42;
        bench_need(cw_array_put(array, name, CW_REPLACE, NULL, 0), "put");
    }
    cw_array_close(array);
}

static void make_names(char names[SPOTS][32], unsigned among) {
    for (unsigned i = 0; i < SPOTS; i++)
        snprintf(names[i], sizeof names[i], "bench/%u", i * (among / SPOTS));
}

/* ns of one get and close, over batch of them. */
static double get_all(cw_client *client, char names[SPOTS][32], unsigned spots, unsigned batch) {
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < batch; i++) {
        cw_array *array;
        bench_need(cw_get(client, names[i % spots], CW_READONLY, &array), "get");
        CW_ASSERT(*(const uint64_t *)cw_array_data(array) == 42);
        cw_array_close(array);
    }
    return (double)(cw_now_ns() - begun_ns) / batch;
}

struct set { /* one broker and its names */
    struct scratch scratch;
    cw_client *reader; /* not the client that put the names */
    char names[SPOTS][32];
    struct bench_samples turn, one;
};

static void set_open(struct set *set, unsigned count) {
    scratch_open(&set->scratch);
    put_names(set->scratch.client, count);
    make_names(set->names, count);
    bench_need(cw_connect(set->scratch.folder, "", 0, &set->reader), "connect");
    get_all(set->reader, set->names, SPOTS, SPOTS);
}

static void set_measure(struct set *set, unsigned spots, unsigned batch) {
    struct bench_samples *samples = spots == 1 ? &set->one : &set->turn;
    double before = bench_cpu_seconds();
    bench_add(samples, get_all(set->reader, set->names, spots, batch));
    samples->cpu_seconds += bench_cpu_seconds() - before;
}

int main(int argc, char **argv) {
    unsigned rounds = (unsigned)bench_option(argc, argv, "rounds", 1001);
    unsigned batch = (unsigned)bench_option(argc, argv, "batch", 200);
    static struct set few, many;
    set_open(&few, FEW);
    set_open(&many, MANY);
    for (unsigned i = 0; i < rounds; i++) {
        set_measure(&few, SPOTS, batch);
        set_measure(&many, SPOTS, batch);
        set_measure(&few, 1, batch);
        set_measure(&many, 1, batch);
    }
    bench_report("get", "get+close, 100 names, in turn", "", "ns", &few.turn);
    bench_report("get", "get+close, 100,000 names, 100 in turn", "", "ns", &many.turn);
    bench_report("get", "get+close, 100 names, one name", "", "ns", &few.one);
    bench_report("get", "get+close, 100,000 names, one name", "", "ns", &many.one);
    cw_client_unref(few.reader);
    cw_client_unref(many.reader);
    scratch_close(&few.scratch);
    scratch_close(&many.scratch);
    return 0;
}
