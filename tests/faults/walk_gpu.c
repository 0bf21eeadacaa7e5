/*
 * The part of the walk on GPUs, with the test double of the driver (tests/fakecuda): see walk.c. It
 * needs two devices of 64 MiB, and the mover.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/faults/walk.h"

#define BYTES 65536
#define PART  (24 << 20) /* three of them do not fit */

static cw_array *on_gpu(cw_client *client, const char *device, int64_t bytes, uint32_t flags) {
    cw_layout layout;
    cw_array *array;
    walk_layout(&layout, &bytes);
    STEP(cw_array_new(client, device, &layout, flags, &array));
    return array;
}

static void fill(cw_array *array, int filling) {
    static uint8_t bytes[BYTES];
    memset(bytes, filling, sizeof bytes);
    STEP(cw_array_write(array, 0, bytes, BYTES));
}

static void expect(cw_array *array, int filling) {
    static uint8_t bytes[BYTES];
    STEP(cw_array_read(array, 0, bytes, BYTES));
    for (int i = 0; i < BYTES; i++)
        MUST(bytes[i] == filling);
}

static void in_order(cw_array *one, cw_array *two) {
    cw_use uses[2] = {{.array = one}, {.array = two, .writing = 1, .whole = 1}};
    cw_pair pairs[2] = {{two, 0, one, 0, 64}, {two, 64, one, 64, BYTES - 64}};
    cw_completion done;
    cw_work *work;
    STEP(cw_array_copy(two, 0, one, 0, BYTES, CW_STREAM_OWN));
    STEP(cw_array_wait(two, -1));
    expect(two, 1);
    STEP(cw_array_writing_begin(one, NULL, -1));
    STEP(cw_array_writing_finish(one, NULL, 0, &done));
    STEP(cw_completion_wait(cw_array_client(one), &done, -1));
    STEP(cw_array_reading_begin(one, NULL, -1));
    STEP(cw_array_reading_finish(one, NULL, &done));
    STEP(cw_completion_wait(cw_array_client(one), &done, -1));
    fill(one, 2);
    STEP(cw_work_begin(uses, 2, NULL, -1, &work));
    STEP(cw_work_finish(work, &done));
    STEP(cw_completion_wait(cw_array_client(one), &done, -1));
    STEP(cw_work_check(cw_array_client(one)));
    STEP(cw_array_copy_many(pairs, 2, NULL));
    expect(two, 2);
    STEP(cw_array_behind(two, NULL));
    STEP(cw_stream_wait(0, NULL, 1));
}

/* By the mover. */
static void copies(cw_client *client, cw_array *array) {
    cw_array *copy;
    STEP(cw_array_put(array, "faults/gpu", CW_REPLACE, NULL, 0));
    STEP(cw_get_copy(client, "faults/gpu", "cpu", &copy));
    MUST(walk_filled(copy, 2));
    cw_array_close(copy);
    STEP(cw_get(client, "faults/gpu", 0, &copy));
    expect(copy, 2);
    cw_array_close(copy);
    STEP(cw_remove(client, "faults/gpu"));
}

static void evict(cw_client *client) {
    cw_array *parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = on_gpu(client, "cuda:0", PART, CW_EVICTABLE);
        fill(parts[i], 10 + i);
    }
    for (int i = 0; i < 3; i++)
        expect(parts[i], 10 + i);
    for (int i = 0; i < 3; i++)
        cw_array_close(parts[i]);
}

static void lend(cw_client *client) {
    cw_array *pool = on_gpu(client, "cuda:0", 1 << 20, CW_POOL), *lent;
    uint64_t loan, ended;
    STEP(cw_array_at(client, (char *)cw_array_data(pool) + 4096, BYTES, &lent, &loan));
    fill(lent, 4);
    expect(lent, 4);
    cw_array_close(lent);
    int code = cw_loan_next(client, &ended);
    MUST(code == -EAGAIN || (code == 0 && ended == loan));
    cw_array_close(pool);
}

void walk_gpu(cw_client *client) {
    cw_device_info info;
    cw_device_place place;
    cw_link_info link;
    uint64_t waiting;
    if (!getenv("CABLEWAY_CUDA_DRIVER"))
        return;
    STEP(cw_device_check("cuda:1"));
    STEP(cw_device_stat("cuda:0", &info));
    STEP(cw_device_place_of("cuda:0", &place));
    cw_array *one = on_gpu(client, "cuda:0", BYTES, 0), *two = on_gpu(client, "cuda:1", BYTES, 0);
    fill(one, 1);
    in_order(one, two);
    copies(client, two);
    STEP(cw_link_stat(0, 1, 0, &link));
    cw_array_close(one);
    cw_array_close(two);
    evict(client);
    lend(client);
    (void)cw_trim(client, 0, &waiting);
}
