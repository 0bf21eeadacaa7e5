/*
 * Meetings of a group's processes, one after the other as fast as they can: nobody is let past
 * before all are there, no result is that of another operation, and nobody sleeps on.
 * `test_group_meetings 100000000` does so many barriers.
 */
#include "tests/unit/ipc/client_support.h"

#define MEMBERS 2u

static uint64_t barriers;
static cw_a64 *arrived; /* of each member, how far it is */

static void meet(cw_group *group, uint32_t rank) {
    struct chance chance = chance_init(rank);
    for (uint64_t i = 1; i <= barriers; i++) {
        /* Relaxed: the barrier is what orders them. */
        atomic_store_explicit(&arrived[8 * rank], i, memory_order_relaxed);
        CHILD(cw_group_barrier(group) == 0);
        uint64_t other = atomic_load_explicit(&arrived[8 * !rank], memory_order_relaxed);
        CHILD(other == i || other == i + 1);
        if (i % 64 == 0) {
            uint64_t sum = i + rank;
            cw_group_memory memory = {&sum, NULL};
            CHILD(cw_group_allreduce(group, memory, memory, 1, "<u8", CW_SUM) == 0);
            CHILD(sum == 2 * i + 1);
        }
        if (chance_below(&chance, 8192) == 0)
            usleep(200); /* long enough for the other one to fall asleep */
    }
    CHILD(cw_group_completed(group) == barriers + barriers / 64);
}

static void nobody_passes_before_all_are_there(void **state) {
    (void)state;
    const cw_group_options options = {.timeout_ns = 60 * SECOND};
    pid_t children[MEMBERS];
    chance_seed();
    cw_client_unref(client_open()); /* one broker, not started by all at once */
    for (uint32_t rank = 0; rank < MEMBERS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            cw_client *client;
            cw_group *group = NULL;
            CHILD(cw_connect(NULL, NULL, 0, &client) == 0);
            CHILD(cw_group_join(client, "many", MEMBERS, (int)rank, &options, &group) == 0);
            meet(group, rank);
            cw_group_close(group);
            cw_client_unref(client);
            _exit(0);
        }
    }
    for (uint32_t rank = 0; rank < MEMBERS; rank++) {
        int status;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        assert_int_equal(status, 0);
    }
}

int main(int argc, char **argv) {
    barriers = argc > 1 ? strtoull(argv[1], NULL, 10) : test_rounds(500000);
    arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(arrived != MAP_FAILED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_passes_before_all_are_there),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
