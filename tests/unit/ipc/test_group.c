/*
 * The promises of groups to C programs, against a real broker: members are processes, operations
 * give what they say, a killed member is named, and bad arguments do nothing.
 */
#include "tests/unit/ipc/client_support.h"

#define MEMBERS 3u

static const cw_group_options options = {.timeout_ns = 60 * SECOND};

static cw_group *join(cw_client **client, int rank) {
    cw_group *group = NULL;
    if (cw_connect(NULL, NULL, 0, client) == 0 &&
        cw_group_join(*client, "test", MEMBERS, rank, &options, &group) != 0)
        fprintf(stderr, "# %s\n", cw_error());
    return group;
}

/* Runs a member's part in each of so many children; all have to end well, but for the killed one.
 */
static void run(void (*part)(cw_group *group, uint32_t rank), int killed) {
    pid_t children[MEMBERS];
    cw_client_unref(client_open()); /* one broker, not started by all at once */
    for (unsigned rank = 0; rank < MEMBERS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0) {
            cw_client *client;
            cw_group *group = join(&client, (int)rank);
            CHILD(group != NULL);
            part(group, rank);
            cw_group_close(group);
            cw_client_unref(client);
            _exit(0);
        }
    }
    for (unsigned rank = 0; rank < MEMBERS; rank++) {
        int status;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        assert_int_equal(status, (int)rank == killed ? SIGKILL : 0);
    }
}

static void all_operations(cw_group *group, uint32_t rank) {
    int32_t send[MEMBERS], receive[MEMBERS] = {0}, sum = 0;
    CHILD(cw_group_rank(group) == rank && cw_group_size(group) == MEMBERS);
    for (unsigned i = 0; i < MEMBERS; i++)
        send[i] = (int32_t)(10 * rank + i);
    cw_group_memory from = {send, NULL}, to = {receive, NULL}, one = {&sum, NULL};
    CHILD(cw_group_barrier(group) == 0);
    CHILD(cw_group_allreduce(group, from, one, 1, "<i4", CW_SUM) == 0 && sum == 30);
    CHILD(cw_group_reduce(group, from, one, 1, "<i4", CW_MAX, 0) == 0 && sum == (rank ? 30 : 20));
    CHILD(cw_group_allgather(group, from, to, 1, "<i4") == 0 && receive[2] == 20);
    CHILD(cw_group_gather(group, from, to, 1, "<i4", 1) == 0);
    CHILD(cw_group_scatter(group, from, one, 1, "<i4", 1) == 0 && sum == 10 + (int)rank);
    CHILD(cw_group_alltoall(group, from, to, 1, "<i4") == 0 && receive[1] == 10 + (int)rank);
    CHILD(cw_group_reduce_scatter(group, from, one, 1, "<i4", CW_MIN) == 0 && sum == (int)rank);
    CHILD(cw_group_bcast(group, one, 1, "<i4", 2) == 0 && sum == 2);
    CHILD(cw_group_completed(group) == 9 && cw_group_broken(group, NULL) == 0);
}

static void operations_give_what_they_say(void **state) {
    (void)state;
    run(all_operations, -1);
}

static void arrays(cw_group *group, uint32_t rank) {
    int64_t count = 100000;
    cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = &count, .dtype = "<f8"};
    cw_client *client = client_open();
    cw_array *array;
    CHILD(cw_array_new(client, "cpu", &layout, 0, &array) == 0);
    double *data = cw_array_data(array);
    for (int64_t i = 0; i < count; i++)
        data[i] = rank + 1;
    cw_group_memory memory = {data, array};
    CHILD(cw_group_allreduce(group, memory, memory, (uint64_t)count, "<f8", CW_SUM) == 0);
    CHILD(data[0] == 6 && data[count / 2] == 6 && data[count - 1] == 6);
    memory.data = data + 1; /* one beyond the end */
    CHILD(cw_group_allreduce(group, memory, memory, (uint64_t)count, "<f8", CW_SUM) == -EINVAL);
    CHILD(cw_group_barrier(group) == 0);
    cw_array_close(array);
    cw_client_unref(client);
}

static void arrays_are_computed_in_place(void **state) {
    (void)state;
    run(arrays, -1);
}

static void dies(cw_group *group, uint32_t rank) {
    cw_group_break broken = {.reason = 0};
    CHILD(cw_group_barrier(group) == 0);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    CHILD(cw_group_barrier(group) == -EOWNERDEAD && strstr(cw_error(), "rank 1 "));
    CHILD(cw_group_broken(group, &broken) == 1 && broken.reason == CW_GROUP_DIED &&
          broken.rank == 1 && broken.pid > 0);
    CHILD(cw_group_reform(group) == 0 && cw_group_size(group) == 2);
    CHILD(cw_group_rank(group) == rank / 2 && cw_group_completed(group) == 1);
    CHILD(cw_group_barrier(group) == 0);
}

static void a_killed_member_is_named_and_the_rest_goes_on(void **state) {
    (void)state;
    run(dies, 1);
}

static void messages(cw_group *group, uint32_t rank) {
    cw_group_message message;
    if (rank == 0)
        for (int32_t tag = 0; tag < 2; tag++)
            CHILD(cw_group_send(group, &tag, sizeof tag, 7, 1, tag) == 0);
    for (int32_t tag = 1; rank == 1 && tag >= 0; tag--) {
        CHILD(cw_group_receive(group, 0, tag, &message) == 0);
        CHILD(message.source == 0 && message.tag == tag && message.kind == 7 &&
              message.size_bytes == sizeof tag && memcmp(message.data, &tag, sizeof tag) == 0);
        cw_group_message_end(&message);
    }
    cw_group_part *parts;
    CHILD(cw_group_exchange(group, "abc", rank, CW_GROUP_ALL, 0, 1, &parts) == 0);
    for (unsigned i = 0; i < MEMBERS; i++)
        CHILD(rank ? !parts[i].data
                   : parts[i].size_bytes == i && memcmp(parts[i].data, "abc", i) == 0);
    cw_group_parts_free(parts, MEMBERS);
}

static void messages_are_picked_by_tag_and_bytes_gathered(void **state) {
    (void)state;
    run(messages, -1);
}

static void sends_and_dies(cw_group *group, uint32_t rank) {
    cw_group_message message;
    int32_t value = (int32_t)rank;
    for (int i = 0; rank && i < 2; i++)
        CHILD(cw_group_send(group, &value, sizeof value, 7, 0, 3) == 0);
    CHILD(cw_group_barrier(group) == 0);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    CHILD(cw_group_barrier(group) == -EOWNERDEAD && cw_group_reform(group) == 0);
    if (rank == 0) {
        CHILD(cw_group_receive(group, 1, -1, &message) == 0 && message.source == 1);
        CHILD(memcmp(message.data, &(int32_t){2}, sizeof(int32_t)) == 0);
        cw_group_message_end(&message);
        CHILD(cw_group_probe(group, -1, -1, CW_GROUP_LOOK, &message) == 1 && message.source == 1);
        CHILD(cw_group_drop_messages(group) == 0);
        CHILD(cw_group_probe(group, -1, -1, CW_GROUP_LOOK, &message) == 0);
    }
    CHILD(cw_group_barrier(group) == 0);
    if (rank == 2)
        CHILD(cw_group_send(group, &value, sizeof value, 8, 0, 3) == 0);
    if (rank == 0) {
        CHILD(cw_group_receive(group, -1, 3, &message) == 0 && message.kind == 8);
        cw_group_message_end(&message);
    }
}

static void messages_of_the_living_outlive_a_break(void **state) {
    (void)state;
    run(sends_and_dies, 1);
}

static void declines(cw_group *group, uint32_t rank) {
    double value = rank;
    cw_group_memory memory = {&value, NULL};
    for (int i = 0; i < 100; i++) {
        uint32_t met = cw_group_meetings(group);
        if (rank == 1)
            CHILD(cw_group_decline(group, "out of\n\x80 order") == 0);
        else
            CHILD(cw_group_allreduce(group, memory, memory, 1, "<f8", CW_SUM) == -EINVAL &&
                  strstr(cw_error(), "rank 1 could not take part") &&
                  strstr(cw_error(), "out of?? order"));
        CHILD(cw_group_meetings(group) == met + 1 && cw_group_completed(group) == (uint64_t)i);
        CHILD(cw_group_barrier(group) == 0); /* all are in step */
    }
    CHILD(cw_group_decline(group, "x") == 0 && cw_group_barrier(group) == 0); /* all of them */
    if (rank == 2)
        CHILD(cw_group_interrupt(group) == 0);
    CHILD(cw_group_barrier(group) == -EOWNERDEAD);
    CHILD(cw_group_interrupt(group) == -EOWNERDEAD && cw_group_decline(group, "x") == -EOWNERDEAD);
    CHILD(cw_group_reform(group) == 0 && cw_group_size(group) == MEMBERS);
}

static void who_cannot_take_part_says_why_and_all_stay_in_step(void **state) {
    (void)state;
    run(declines, -1);
}

static void probes(cw_group *group, uint32_t rank) {
    cw_group_message message, kept[3];
    if (rank == 0)
        for (int32_t tag = 0; tag < 3; tag++)
            CHILD(cw_group_send_now(group, &tag, sizeof tag, 7, 1, tag) == 0);
    if (rank != 1) {
        CHILD(cw_group_barrier(group) == 0);
        return;
    }
    CHILD(cw_group_probe(group, 0, 2, CW_GROUP_WAIT, &message) == 1);
    CHILD(message.tag == 2 && message.size_bytes == 4 && !message.data && !message.owner);
    CHILD(cw_group_probe(group, 0, 5, CW_GROUP_LOOK, &message) == 0);
    CHILD(cw_group_probe(group, -1, -1, CW_GROUP_KEPT, &message) == 1 && message.tag == 0);
    for (int32_t tag = 0; tag < 3; tag++)
        CHILD(cw_group_receive(group, 0, tag, &kept[tag]) == 0);
    CHILD(cw_group_probe(group, 0, -1, CW_GROUP_LOOK, &message) == 0);
    for (int n = 0; n < 3; n++) /* given back in another order, they come as they came */
        CHILD(cw_group_unreceive(group, &kept[(n + 1) % 3]) == 0);
    for (int32_t tag = 0; tag < 3; tag++) {
        CHILD(cw_group_receive(group, -1, -1, &message) == 0 && message.tag == tag);
        cw_group_message_end(&message);
    }
    CHILD(cw_group_barrier(group) == 0);
}

/* Of a call that waits for 60 s by itself. */
static int receive_within(cw_group *group, int64_t limit_ns, int64_t *took_ns) {
    cw_group_message message;
    int64_t begun_ns = cw_now_ns();
    CHILD(cw_group_limit_next(group, limit_ns) == 0);
    int code = cw_group_receive(group, 1, 0, &message);
    *took_ns = cw_now_ns() - begun_ns;
    if (code == 0)
        cw_group_message_end(&message);
    return code;
}

static void limits(cw_group *group, uint32_t rank) {
    const int64_t limit_ns = options.timeout_ns / 600;
    int64_t took_ns;
    if (rank == 0) {
        CHILD(receive_within(group, limit_ns, &took_ns) == -ETIMEDOUT);
        CHILD(took_ns >= limit_ns && took_ns < options.timeout_ns / 2 &&
              strstr(cw_error(), "60.000 s"));
        CHILD(cw_group_limit_next(group, 0) == 0 && cw_group_limit_next(group, -1) == 0);
        CHILD(cw_group_send(group, "x", 1, 0, 1, 0) == 0); /* now the other one sends, */
        CHILD(receive_within(group, -1, &took_ns) == 0);   /* in its own time */
    }
    cw_group_message message;
    if (rank == 1) {
        CHILD(cw_group_receive(group, 0, 0, &message) == 0);
        cw_group_message_end(&message);
        usleep(1000); /* it has to wait for it */
        CHILD(cw_group_send(group, "x", 1, 0, 0, 0) == 0);
    }
    CHILD(cw_group_barrier(group) == 0);
}

static void a_call_may_have_less_time_than_the_group(void **state) {
    (void)state;
    run(limits, -1);
}

static void messages_are_looked_at_and_given_back(void **state) {
    (void)state;
    run(probes, -1);
}

static void bad_arguments_do_nothing(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_group *group;
    cw_group_part *parts;
    cw_group_message message;
    double value = 1;
    cw_group_memory memory = {&value, NULL}, none = {NULL, NULL};
    assert_int_equal(cw_group_join(NULL, "x", 1, 0, NULL, &group), -EINVAL);
    assert_int_equal(cw_group_join(client, NULL, 1, 0, NULL, &group), -EINVAL);
    assert_int_equal(cw_group_join(client, "x", 1, 0, NULL, NULL), -EINVAL);
    assert_int_equal(cw_group_join(client, "x", CW_GROUP_RANKS_MAX + 1, 0, NULL, &group), -EINVAL);
    assert_int_equal(cw_group_join(client, "x", 1, -2, NULL, &group), -EINVAL);
    assert_int_equal(cw_group_barrier(NULL), -EINVAL);
    assert_int_equal(cw_group_barrier_finish(NULL), -EINVAL);
    assert_int_equal(cw_group_reform(NULL), -EINVAL);
    assert_int_equal(cw_group_broken(NULL, NULL), -EINVAL);
    assert_int_equal(cw_group_size(NULL), 0);
    cw_group_close(NULL);
    cw_group_message_end(NULL);
    cw_group_parts_free(NULL, 3);
    OK(cw_group_join(client, "x", 1, 0, NULL, &group));
    assert_int_equal(cw_group_bcast(group, none, 1, "<f8", 0), -EINVAL);
    assert_int_equal(cw_group_bcast(group, memory, 1, NULL, 0), -EINVAL);
    assert_int_equal(cw_group_bcast(group, memory, 1, "<q9", 0), -EINVAL);
    assert_int_equal(cw_group_bcast(group, memory, 1, "<f8", 1), -EINVAL);
    assert_int_equal(cw_group_bcast(group, memory, UINT64_MAX, "<f8", 0), -EINVAL);
    assert_int_equal(cw_group_bcast(group, memory, 1ull << 58, "<f8", 0), -EINVAL);
    assert_int_equal(cw_group_allreduce(group, memory, memory, 1, "<f8", 0), -EINVAL);
    assert_int_equal(cw_group_allreduce(group, memory, memory, 1, "<f8", CW_REDUCTIONS), -EINVAL);
    assert_int_equal(cw_group_allreduce(group, memory, memory, 1, "<f8", CW_BOR), -EINVAL);
    assert_int_equal(cw_group_exchange(group, NULL, 1, CW_GROUP_ALL, 0, 0, &parts), -EINVAL);
    assert_int_equal(cw_group_exchange(group, "x", 1, 0, 1, 0, &parts), -EINVAL);
    assert_int_equal(cw_group_exchange(group, "x", 1, CW_GROUP_ALL, 0, 0, NULL), -EINVAL);
    assert_int_equal(cw_group_send(group, NULL, 1, 0, 0, 0), -EINVAL);
    assert_int_equal(cw_group_send(group, "x", UINT64_MAX, 0, 0, 0), -EINVAL);
    assert_int_equal(cw_group_send(group, "x", 1, 0, 1, 0), -EINVAL);
    assert_int_equal(cw_group_send(group, "x", 1, 0, 0, -1), -EINVAL);
    assert_int_equal(cw_group_receive(group, 1, 0, &message), -EINVAL);
    assert_int_equal(cw_group_receive(group, 0, 0, NULL), -EINVAL);
    assert_int_equal(cw_group_reform(group), -EINVAL);
    assert_int_equal(cw_group_completed(group), 0);
    assert_int_equal(cw_group_probe(group, 1, 0, CW_GROUP_LOOK, &message), -EINVAL);
    assert_int_equal(cw_group_probe(group, 0, -2, CW_GROUP_LOOK, &message), -EINVAL);
    assert_int_equal(cw_group_probe(group, 0, 0, CW_GROUP_LOOK, NULL), -EINVAL);
    assert_int_equal(cw_group_probe(NULL, 0, 0, CW_GROUP_LOOK, &message), -EINVAL);
    assert_int_equal(cw_group_send_now(group, "x", 1, 0, 1, 0), -EINVAL);
    assert_int_equal(cw_group_decline(NULL, "x"), -EINVAL);
    assert_int_equal(cw_group_decline(group, NULL), -EINVAL);
    assert_int_equal(cw_group_interrupt(NULL), -EINVAL);
    assert_int_equal(cw_group_meetings(NULL), 0);
    OK(cw_group_barrier(group));
    assert_int_equal(cw_group_set_timeout(NULL, 0), -EINVAL);
    OK(cw_group_set_timeout(group, 1));
    assert_int_equal(cw_group_receive(group, 0, 0, &message), -ETIMEDOUT);
    cw_group_close(group);
    cw_client_unref(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(operations_give_what_they_say, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(arrays_are_computed_in_place, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_killed_member_is_named_and_the_rest_goes_on, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(messages_are_picked_by_tag_and_bytes_gathered, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(messages_of_the_living_outlive_a_break, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(who_cannot_take_part_says_why_and_all_stay_in_step,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(messages_are_looked_at_and_given_back, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(a_call_may_have_less_time_than_the_group, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(bad_arguments_do_nothing, folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
