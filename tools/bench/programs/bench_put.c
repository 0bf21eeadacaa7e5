/*
 * Putting 256 MiB under a name against memcpy into memory that is already mapped and touched.
 * Random data, several source buffers in turn (larger than the caches), what arrived is checked.
 * The first put, which makes and touches a slab, is told apart from those that find memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"
#include "tools/bench/programs/scratch.h"

#define BYTES   (256ull << 20)
#define SOURCES 3u
#define WARM    4u
#define FIRST   5u /* first touches of each kind; each put takes memory of its own */

static void fill(uint64_t *words, uint64_t seed) {
    for (uint64_t i = 0; i < BYTES / 8; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        words[i] = seed;
    }
}

/* Compares a word of every page, and the whole of the last one. */
static void check(const void *got, const void *wanted) {
    for (uint64_t at = 0; at < BYTES; at += 4096)
        CW_ASSERT(*(const uint64_t *)((const char *)got + at) ==
                  *(const uint64_t *)((const char *)wanted + at));
    CW_ASSERT(!memcmp((const char *)got + BYTES - 4096, (const char *)wanted + BYTES - 4096, 4096));
}

static double gib_per_second(int64_t begun_ns) {
    return (double)BYTES / (1u << 30) / ((double)(cw_now_ns() - begun_ns) * 1e-9);
}

/* Shared memory, as that which we put into: private memory has other page sizes. */
static void *map_shared(void) {
    void *target = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CW_ASSERT(target != MAP_FAILED);
    return target;
}

static double copy(void *target, const void *source) {
    int64_t begun_ns = cw_now_ns();
    memcpy(target, source, BYTES);
    return gib_per_second(begun_ns);
}

/* One put: allocate, copy in, name. What had the name before is given up, as a user's loop would.
 */
static double put(cw_client *client, const void *source, const char *name) {
    int64_t shape = BYTES / 8, begun_ns = cw_now_ns();
    cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = &shape, .dtype = "<u8"};
    cw_array *array;
    bench_need(cw_array_new(client, "cpu", &layout, 0, &array), "allocate");
    bench_need(cw_array_write(array, 0, source, BYTES), "write");
    bench_need(cw_array_put(array, name, CW_REPLACE, NULL, 0), "put");
    double rate = gib_per_second(begun_ns);
    check(cw_array_data(array), source);
    cw_array_close(array);
    return rate;
}

static void report(const char *name, struct bench_samples *samples) {
    bench_report("put", name, "", "GiB/s", samples);
    bench_samples_deinit(samples);
}

int main(int argc, char **argv) {
    unsigned rounds = (unsigned)bench_option(argc, argv, "rounds", 20);
    struct bench_samples copies = {0}, puts = {0}, first_copies = {0}, first_puts = {0};
    void *sources[SOURCES];
    for (unsigned i = 0; i < SOURCES; i++) {
        sources[i] = malloc(BYTES);
        CW_ASSERT(sources[i]);
        fill(sources[i], 88172645463325252ull + i);
    }
    struct scratch scratch;
    scratch_open(&scratch);
    cw_client *client = scratch.client;

    for (unsigned i = 0; i < FIRST; i++) {
        char name[32];
        snprintf(name, sizeof name, "bench/%u", i);
        double before = bench_cpu_seconds();
        void *fresh = map_shared();
        bench_add(&first_copies, copy(fresh, sources[i % SOURCES]));
        munmap(fresh, BYTES);
        double between = bench_cpu_seconds();
        first_copies.cpu_seconds += between - before;
        bench_add(&first_puts, put(client, sources[i % SOURCES], name));
        first_puts.cpu_seconds += bench_cpu_seconds() - between;
    }
    /* From here on each put finds the memory of the one before the last. */
    void *target = map_shared();
    copy(target, sources[0]);
    for (unsigned i = 0; i < WARM; i++)
        put(client, sources[i % SOURCES], "bench/warm");
    for (unsigned i = 0; i < rounds; i++) {
        const void *source = sources[i % SOURCES];
        double before = bench_cpu_seconds();
        bench_add(&copies, copy(target, source));
        double between = bench_cpu_seconds();
        copies.cpu_seconds += between - before;
        check(target, source);
        between = bench_cpu_seconds();
        bench_add(&puts, put(client, source, "bench/warm"));
        puts.cpu_seconds += bench_cpu_seconds() - between;
    }
    report("memcpy 256 MiB into mapped, touched memory", &copies);
    report("put 256 MiB, slab there already", &puts);
    report("memcpy 256 MiB, first touch", &first_copies);
    report("put 256 MiB, first touch (a new slab)", &first_puts);
    scratch_close(&scratch);
    return 0;
}
