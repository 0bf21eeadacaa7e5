/*
 * Handles as bytes: they lead to their array and to no other, for as many openers as was said.
 */
#include "tests/unit/ipc/client_support.h"

#include "ipc/base/handle_form.h"
#include "ipc/base/hash.h"

static const int64_t COUNT = 5000;

static void handle_of(cw_array *array, uint32_t openers, uint8_t *bytes, uint64_t *size) {
    OK(cw_to_handle(array, openers, 0, NULL, 0, bytes, size));
    assert_true(*size > sizeof(struct cw_handle_form) && *size <= CW_HANDLE_BYTES_MAX);
}

static void open_and_close(cw_client *client, const uint8_t *bytes, uint64_t size) {
    cw_array *got;
    OK(cw_from_handle(client, bytes, size, 0, &got));
    assert_true(bytes_are(got, COUNT, 3));
    cw_array_close(got);
}

static bool is_stale(cw_client *client, const uint8_t *bytes, uint64_t size) {
    cw_array *got;
    int code = cw_from_handle(client, bytes, size, 0, &got);
    if (code == 0)
        cw_array_close(got);
    return code == -ESTALE;
}

static void it_is_opened_as_often_as_was_said(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    uint8_t bytes[CW_HANDLE_BYTES_MAX];
    uint64_t size;
    cw_array *array = bytes_new(client, COUNT, 3);
    handle_of(array, 3, bytes, &size);
    cw_array_close(array); /* at once */
    for (int i = 0; i < 3; i++) {
        OK(cw_ping(client));
        open_and_close(i == 1 ? client : other, bytes, size);
    }
    EVENTUALLY(is_stale(other, bytes, size));
    assert_non_null(strstr(cw_error(), "for 3 openers"));
    assert_non_null(strstr(cw_error(), "transit_seconds"));
    cw_client_unref(other);
    cw_client_unref(client);
}

/* Bytes that were changed on their way are refused by the check, wherever the change is. */
static void damage_is_noticed(void **state) {
    (void)state;
    cw_client *client = client_open();
    uint8_t bytes[CW_HANDLE_BYTES_MAX];
    uint64_t size;
    cw_array *array = bytes_new(client, COUNT, 3), *got;
    handle_of(array, 1, bytes, &size);
    for (uint64_t i = 0; i < size; i++) {
        bytes[i] ^= 1u << i % 8;
        assert_int_equal(cw_from_handle(client, bytes, size, 0, &got), -EPROTO);
        bytes[i] ^= 1u << i % 8;
    }
    for (uint64_t cut = 0; cut < size; cut++)
        assert_int_equal(cw_from_handle(client, bytes, cut, 0, &got), -EPROTO);
    open_and_close(client, bytes, size);
    cw_array_close(array);
    cw_client_unref(client);
}

static void sign(uint8_t *bytes, uint64_t size) {
    uint64_t check = cw_hash(bytes, size - sizeof check, 0);
    memcpy(bytes + size - sizeof check, &check, sizeof check);
}

/* And where the check fits: its block, its bounds and its broker are looked at. */
static void lies_are_refused(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    uint8_t good[CW_HANDLE_BYTES_MAX], bad[CW_HANDLE_BYTES_MAX];
    uint64_t size;
    cw_array *array = bytes_new(client, COUNT, 3), *got;
    handle_of(array, CW_OPENERS_MAX, good, &size);
    struct chance chance = chance_init(1);
    for (int i = 0; i < 2000; i++) {
        struct cw_handle_form form;
        memcpy(bad, good, size);
        memcpy(&form, bad, sizeof form);
        uint64_t noise = chance_next(&chance) >> chance_below(&chance, 64);
        switch (i % 5) {
        case 0:
            form.handle.slab += (uint32_t)noise | 1;
            break;
        case 1:
            form.handle.block += (uint32_t)noise | 1;
            break;
        case 2:
            form.handle.gen += noise | 1;
            break;
        case 3:
            form.handle.offset_bytes = 64 + noise;
            break;
        default:
            form.handle.size_bytes = 5057 + noise;
        }
        memcpy(bad, &form, sizeof form);
        sign(bad, size);
        int code = cw_from_handle(other, bad, size, 0, &got);
        if (code != -ESTALE && code != -EPROTO)
            fail_msg("%d in round %d: %s", code, i, cw_error());
    }
    cw_array_close(array);
    open_and_close(other, good, size); /* they have ended nothing of its own */
    cw_client_unref(other);
    cw_client_unref(client);
}

/* A handle that came from somewhere else says so. */
static void the_error_names_the_other_place(void **state) {
    (void)state;
    cw_client *client = client_open();
    uint8_t bytes[CW_HANDLE_BYTES_MAX];
    uint64_t size;
    cw_array *array = bytes_new(client, COUNT, 3), *got;
    struct cw_handle_read read, other;
    handle_of(array, 1, bytes, &size);
    OK(cw_handle_decode(bytes, size, &read));
    other = read;
    other.info.handle.instance++;
    size = cw_handle_encode(&other, bytes);
    assert_int_equal(cw_from_handle(client, bytes, size, 0, &got), -ESTALE);
    assert_non_null(strstr(cw_error(), "started again"));
    strcpy(other.info.address, "/some/where/cablewayd.sock");
    size = cw_handle_encode(&other, bytes);
    assert_int_equal(cw_from_handle(client, bytes, size, 0, &got), -EXDEV);
    assert_non_null(strstr(cw_error(), "/some/where/cablewayd.sock"));
    strcpy(other.info.node, "some-other-node");
    strcpy(other.info.name_space, "theirs");
    size = cw_handle_encode(&other, bytes);
    assert_int_equal(cw_from_handle(client, bytes, size, 0, &got), -EXDEV);
    assert_non_null(strstr(cw_error(), "some-other-node"));
    assert_non_null(strstr(cw_error(), "theirs"));
    cw_array_close(array);
    cw_client_unref(client);
}

static void a_part_is_all_that_it_names(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    uint8_t bytes[CW_HANDLE_BYTES_MAX];
    uint64_t size;
    int64_t count = 100, back = -2;
    cw_array *array = bytes_new(client, COUNT, 3), *got;
    ((uint8_t *)cw_array_data(array))[1000] = 7;
    const cw_layout layout = {
        .ndim = 1, .itemsize = 1, .shape = &count, .strides = &back, .dtype = "|u1"};
    OK(cw_to_handle(array, 1, CW_READONLY, &layout, 1000, bytes, &size));
    OK(cw_from_handle(other, bytes, size, 0, &got));
    assert_int_equal(*(uint8_t *)cw_array_data(got), 7);
    assert_int_equal(cw_array_nbytes(got), 199);
    assert_true(cw_array_readonly(got));
    struct cw_handle_read read;
    OK(cw_handle_decode(bytes, size, &read));
    assert_int_equal(read.info.handle.size_bytes, 199);
    cw_array_close(got);
    assert_int_equal(cw_to_handle(array, 0, 0, NULL, 0, bytes, &size), -EINVAL);
    assert_int_equal(cw_to_handle(array, CW_OPENERS_MAX + 1, 0, NULL, 0, bytes, &size), -EINVAL);
    assert_non_null(strstr(cw_error(), "65536"));
    assert_int_equal(cw_to_handle(array, 1, 0, &layout, 10, bytes, &size), -EINVAL); /* below it */
    cw_array_close(array);
    cw_client_unref(other);
    cw_client_unref(client);
}

/* Who makes it is killed, one opener before it opens, one while it has it open: the others open. */
static void deaths_take_nothing_from_the_others(void **state) {
    (void)state;
    int ends[2], opened[2];
    uint8_t bytes[CW_HANDLE_BYTES_MAX], some;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pipe(opened), 0);
    pid_t maker = fork();
    if (maker == 0) {
        cw_client *client;
        uint64_t size;
        CHILD(cw_connect(NULL, NULL, 0, &client) == 0);
        cw_array *array = bytes_new(client, COUNT, 3);
        CHILD(cw_to_handle(array, 3, 0, NULL, 0, bytes, &size) == 0);
        CHILD(write(ends[1], bytes, size) == (ssize_t)size);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(maker, &status, 0), maker);
    assert_true(WIFSIGNALED(status));
    ssize_t size = read(ends[0], bytes, sizeof bytes);
    assert_true(size > 0);
    pid_t holder = fork();
    if (holder == 0) {
        cw_client *client;
        cw_array *got;
        CHILD(cw_connect(NULL, NULL, 0, &client) == 0);
        CHILD(cw_from_handle(client, bytes, (uint64_t)size, 0, &got) == 0);
        CHILD(write(opened[1], "x", 1) == 1);
        pause();
    }
    assert_int_equal(read(opened[0], &some, 1), 1);
    kill(holder, SIGKILL);
    assert_int_equal(waitpid(holder, &status, 0), holder);
    cw_client *client = client_open();
    open_and_close(client, bytes, (uint64_t)size);
    open_and_close(client, bytes, (uint64_t)size);
    EVENTUALLY(is_stale(client, bytes, (uint64_t)size));
    cw_client_unref(client);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(opened[i]);
    }
}

int main(void) {
    set_broker_path();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_is_opened_as_often_as_was_said, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(damage_is_noticed, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(lies_are_refused, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(the_error_names_the_other_place, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(a_part_is_all_that_it_names, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(deaths_take_nothing_from_the_others, folder_make,
                                        folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
