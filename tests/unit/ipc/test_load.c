/*
 * Loading: of all who ask one reads; the others wait, get the tree, or take over; and what was not
 * read whole from files that stayed as they were is never seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "tests/unit/raw_client.h"

#define BYTES   (20u << 20) /* several pieces, the last one not whole */
#define TINY_NS 30000000
#define FOREVER (-1)
#define THREADS 6

static struct raw_broker broker;
static struct raw_mail mail;
static char path[128];

/* A file that was changed last long ago: whatever is written from now on has another time. */
static void write_file(uint8_t seed) {
    static uint8_t data[BYTES];
    const struct timespec old[2] = {{.tv_sec = 1000 + seed}, {.tv_sec = 1000 + seed}};
    char header[200];
    int length = snprintf(header, sizeof header,
                          "{\"a\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[0,%u]},"
                          "\"b\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[%u,%u]}}",
                          BYTES - 7, BYTES - 7, BYTES - 7, BYTES);
    uint64_t header_bytes = (uint64_t)length;
    for (uint32_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 12) + seed);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fwrite(&header_bytes, 8, 1, out);
    fwrite(header, header_bytes, 1, out);
    fwrite(data, BYTES, 1, out);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

static cw_client *connect_here(void) {
    cw_client *client;
    assert_int_equal(cw_connect(broker.address.socket_path, NULL, CW_CONNECT_NO_START, &client), 0);
    return client;
}

static cw_load *begin(cw_client *client, uint32_t flags) {
    cw_load *load;
    if (cw_load_begin(client, "m", path, NULL, flags, &load) != 0)
        fail_msg("%s", cw_error());
    return load;
}

static void check_tree(const cw_tree *tree, cw_client *client) {
    for (uint32_t i = 0; i < 2; i++) {
        cw_leaf leaf;
        cw_array *part;
        uint64_t hash;
        assert_int_equal(cw_tree_leaf(tree, i, &leaf), 0);
        assert_int_equal(cw_tree_part(tree, client, leaf.part, &part), 0);
        assert_int_equal(cw_array_hash(part, leaf.offset_bytes, leaf.size_bytes, &hash), 0);
        assert_true(hash == leaf.hash);
        cw_array_close(part);
    }
}

static void say(struct raw_client *client, uint16_t op) {
    uint8_t body[sizeof(struct cw_claim) + 2] = {0};
    const struct cw_claim head = {.token = 1, .key = {.key_bytes = 2}};
    memcpy(body, &head, sizeof head);
    body[sizeof head + 1] = 'm';
    assert_int_equal(raw_post(client, op, ++client->next_id, body, sizeof body), 0);
}

/* Asks until it is granted: whoever had it has said that it is over, and the broker may see that
 * later than what we say. */
static void claim(struct raw_client *client) {
    do {
        say(client, CW_OP_CLAIM);
        assert_int_equal(raw_reply(client, &mail, RAW_TIMEOUT_MS), 1);
    } while (mail.head.status == -EAGAIN);
    assert_int_equal(mail.head.status, 0);
}

static void test_who_has_the_claim_is_waited_for(void **state) {
    struct raw_client other;
    cw_client *client = connect_here();
    cw_tree *tree;
    int loaded = -1;
    (void)state;
    assert_int_equal(raw_connect(&broker, &other), 0);
    claim(&other);
    cw_load *load = begin(client, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cw_load_wait(load, TINY_NS, &tree, &loaded), -ETIMEDOUT);
    assert_string_equal(cw_error(), "\"m\" is not loaded yet: another process may be loading it");
    assert_int_equal(loaded, -1);
    say(&other, CW_OP_RELEASE);
    assert_int_equal(cw_load_wait(load, FOREVER, &tree, &loaded), 0);
    assert_int_equal(loaded, 1);
    check_tree(tree, client);
    cw_load_end(load);
    say(&other, CW_OP_RELEASE); /* of what it has no more: nothing */
    cw_tree_close(tree);
    load = begin(client, 0);
    assert_int_equal(cw_load_wait(load, FOREVER, &tree, &loaded), 0);
    assert_int_equal(loaded, 0);
    cw_tree_close(tree);
    cw_load_end(load);
    assert_int_equal(cw_remove(client, "m"), 0);
    cw_client_unref(client);
    raw_bye(&other);
}

static void test_who_gives_up_leaves_the_claim_to_others(void **state) {
    struct raw_client other;
    cw_client *client = connect_here();
    cw_tree *tree;
    (void)state;
    assert_int_equal(raw_connect(&broker, &other), 0);
    cw_load *load = begin(client, 0);
    assert_int_equal(cw_load_wait(load, 0, &tree, NULL), -ETIMEDOUT); /* may have asked */
    cw_load_end(load);
    claim(&other);
    say(&other, CW_OP_RELEASE);
    cw_client_unref(client);
    raw_bye(&other);
}

static void test_the_claim_of_an_arrays_name(void **state) {
    cw_client *one = connect_here(), *two = connect_here();
    uint64_t token, others;
    const int64_t shape[] = {9};
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = shape, .dtype = "|u1"};
    cw_array *array;
    (void)state;
    assert_int_equal(cw_claim(one, "//n/x", 0, &token), -EINVAL);
    assert_int_equal(cw_claim(one, "x", FOREVER, &token), 0);
    assert_int_equal(cw_claim(two, "x", TINY_NS, &others), -ETIMEDOUT);
    assert_int_equal(others, 0);
    assert_int_equal(cw_claim(two, "y", FOREVER, &others), 0);
    cw_claim_end(two, "y", others);
    cw_claim_end(two, "x", token); /* it is not theirs */
    assert_int_equal(cw_claim(two, "x", TINY_NS, &others), -ETIMEDOUT);
    cw_claim_end(one, "x", token);
    int code;
    while ((code = cw_claim(two, "x", FOREVER, &others)) == -EAGAIN)
        continue;
    assert_int_equal(code, 0);
    assert_int_equal(cw_array_new(two, "cpu", &layout, 0, &array), 0);
    assert_int_equal(cw_array_put(array, "x", CW_TIED, NULL, 0), 0);
    cw_claim_end(two, "x", others);
    while ((code = cw_claim(one, "x", FOREVER, &token)) == 0)
        fail_msg("the name is there, and nobody is to make it");
    assert_int_equal(code, -EAGAIN);
    cw_array_close(array);
    cw_client_unref(two); /* the name goes with it */
    while ((code = cw_claim(one, "x", FOREVER, &token)) == -EAGAIN)
        continue;
    assert_int_equal(code, 0);
    cw_client_unref(one);
}

static void assert_refused(cw_client *client, cw_load *load, const char *because) {
    struct raw_client other;
    cw_tree *tree;
    char *names;
    uint64_t count;
    assert_int_equal(cw_load_wait(load, FOREVER, &tree, NULL), -EPROTO);
    assert_non_null(strstr(cw_error(), because));
    assert_int_equal(cw_names(client, "", &names, &count), 0);
    assert_int_equal(count, 0);
    cw_free(names);
    assert_int_equal(raw_connect(&broker, &other), 0); /* and the claim is over */
    claim(&other);
    raw_bye(&other);
    cw_load_end(load);
}

static void test_a_file_that_is_written_meanwhile_is_refused(void **state) {
    cw_client *client = connect_here();
    (void)state;
    cw_load *load = begin(client, 0);
    FILE *out = fopen(path, "r+");
    assert_non_null(out);
    assert_int_equal(fseek(out, 1 << 20, SEEK_SET), 0);
    fputc(1, out);
    assert_int_equal(fclose(out), 0);
    assert_refused(client, load, "was written to while it was read");
    write_file(0);
    load = begin(client, 0);
    assert_int_equal(truncate(path, BYTES / 2), 0);
    assert_refused(client, load, "was cut off while it was read");
    write_file(0);
    cw_client_unref(client);
}

static void test_a_file_that_is_replaced_meanwhile_is_read_as_it_was(void **state) {
    cw_client *client = connect_here();
    cw_tree *tree, *again;
    int loaded;
    (void)state;
    cw_load *load = begin(client, 0);
    assert_int_equal(unlink(path), 0); /* as a download does, by rename */
    write_file(1);
    assert_int_equal(cw_load_wait(load, FOREVER, &tree, NULL), 0);
    check_tree(tree, client);
    cw_load_end(load);
    load = begin(client, 0); /* other files now */
    assert_int_equal(cw_load_wait(load, FOREVER, &again, NULL), -EEXIST);
    cw_load_end(load);
    load = begin(client, CW_REPLACE);
    assert_int_equal(cw_load_wait(load, FOREVER, &again, &loaded), 0);
    assert_int_equal(loaded, 1);
    cw_tree_info old, new;
    cw_tree_look_at(tree, &old);
    cw_tree_look_at(again, &new);
    assert_true(new.version > old.version &&new.content_hash != old.content_hash);
    cw_load_end(load);
    cw_tree_close(tree);
    cw_tree_close(again);
    assert_int_equal(cw_remove(client, "m"), 0);
    cw_client_unref(client);
}

static uint32_t is_kept(cw_client *client) {
    cw_name_info info;
    assert_int_equal(cw_name_stat(client, "m", &info), 0);
    return info.keep;
}

static uint64_t load_version(cw_client *client, uint32_t flags, int wanted_loaded) {
    cw_load *load = begin(client, flags);
    cw_tree *tree;
    cw_tree_info info;
    int loaded = -1;
    assert_int_equal(cw_load_wait(load, FOREVER, &tree, &loaded), 0);
    assert_int_equal(loaded, wanted_loaded);
    check_tree(tree, client);
    cw_tree_look_at(tree, &info);
    cw_tree_close(tree);
    cw_load_end(load);
    return info.version;
}

static void test_a_name_that_is_loaded_already_is_kept_by_its_next_version(void **state) {
    cw_client *client = connect_here();
    (void)state;
    uint64_t first = load_version(client, 0, 1);
    assert_int_equal(is_kept(client), 0);
    uint64_t kept = load_version(client, CW_KEEP, 0);
    assert_true(kept > first);
    assert_int_equal(is_kept(client), 1);
    assert_true(load_version(client, CW_KEEP, 0) == kept);
    assert_true(load_version(client, CW_KEEP | CW_REPLACE, 0) == kept);
    assert_true(load_version(client, 0, 0) == kept);
    assert_int_equal(is_kept(client), 1);
    assert_int_equal(cw_remove(client, "m"), 0);
    cw_client_unref(client);
}

static pthread_barrier_t barrier;
static uint32_t load_flags;

static void *loading(void *context) {
    cw_client *client = *(cw_client **)context;
    cw_tree *tree;
    int loaded = 0;
    cw_load *load = begin(client, load_flags);
    pthread_barrier_wait(&barrier);
    assert_int_equal(cw_load_wait(load, FOREVER, &tree, &loaded), 0);
    check_tree(tree, client);
    cw_tree_close(tree);
    cw_load_end(load);
    return loaded ? context : NULL;
}

/* Returns how many of them read. */
static int load_at_once(cw_client *clients[2]) {
    pthread_t threads[THREADS];
    int readers = 0;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, loading, &clients[i % 2]), 0);
    for (int i = 0; i < THREADS; i++) {
        void *loaded;
        assert_int_equal(pthread_join(threads[i], &loaded), 0);
        readers += loaded != NULL;
    }
    pthread_barrier_destroy(&barrier);
    return readers;
}

static void test_of_threads_and_clients_that_ask_at_once_one_reads(void **state) {
    cw_client *clients[2] = {connect_here(), connect_here()};
    (void)state;
    assert_int_equal(load_at_once(clients), 1);
    assert_int_equal(cw_remove(clients[0], "m"), 0);
    cw_client_unref(clients[0]);
    cw_client_unref(clients[1]);
}

static void test_of_all_who_keep_a_loaded_name_at_once_one_makes_a_version(void **state) {
    cw_client *clients[2] = {connect_here(), connect_here()};
    (void)state;
    uint64_t first = load_version(clients[0], 0, 1);
    load_flags = CW_KEEP;
    assert_int_equal(load_at_once(clients), 0);
    load_flags = 0;
    assert_int_equal(is_kept(clients[0]), 1);
    assert_true(load_version(clients[0], CW_KEEP, 0) == first + 1);
    assert_int_equal(cw_remove(clients[0], "m"), 0);
    cw_client_unref(clients[0]);
    cw_client_unref(clients[1]);
}

static int start(void **state) {
    (void)state;
    if (!raw_broker_start(&broker, NULL, NULL))
        return -1;
    snprintf(path, sizeof path, "/tmp/cw-load-%d.safetensors", (int)getpid());
    write_file(0);
    return 0;
}

static int stop_broker(void **state) {
    (void)state;
    unlink(path);
    raw_broker_remove(&broker);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_has_the_claim_is_waited_for),
        cmocka_unit_test(test_who_gives_up_leaves_the_claim_to_others),
        cmocka_unit_test(test_the_claim_of_an_arrays_name),
        cmocka_unit_test(test_a_file_that_is_written_meanwhile_is_refused),
        cmocka_unit_test(test_a_file_that_is_replaced_meanwhile_is_read_as_it_was),
        cmocka_unit_test(test_a_name_that_is_loaded_already_is_kept_by_its_next_version),
        cmocka_unit_test(test_of_threads_and_clients_that_ask_at_once_one_reads),
        cmocka_unit_test(test_of_all_who_keep_a_loaded_name_at_once_one_makes_a_version),
    };
    return cmocka_run_group_tests(tests, start, stop_broker);
}
