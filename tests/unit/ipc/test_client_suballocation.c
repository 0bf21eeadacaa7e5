/*
 * The promises of loans: pieces of an array of ours that another allocator has given away.
 */
#include <sys/wait.h>

#include "tests/unit/ipc/client_support.h"

#define POOL (1 << 20)

static cw_array *pool_new(cw_client *client, int64_t count, int value) {
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array = NULL;
    if (cw_array_new(client, "cpu", &layout, CW_POOL, &array) != 0)
        return NULL;
    memset(cw_array_data(array), value, (size_t)count);
    return array;
}

static bool ended(cw_client *client, uint64_t expected) {
    uint64_t number;
    int code = cw_loan_next(client, &number);
    if (code == -EAGAIN)
        return false;
    assert_int_equal(code, 0);
    assert_int_equal(number, expected);
    return true;
}

static uint8_t *address_of(const cw_array *array) {
    return cw_array_data(array);
}

static void a_piece_is_seen_by_others_and_told_when_all_let_go(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *pool = pool_new(client, POOL, 1), *piece, *got;
    uint64_t number;
    OK(cw_array_at(client, address_of(pool) + 8192, 3000, &piece, &number));
    assert_ptr_equal(cw_array_data(piece), address_of(pool) + 8192);
    assert_int_equal(cw_array_nbytes(piece), 3000);
    OK(cw_array_put(piece, "piece", 0, NULL, 0));
    OK(cw_get(other, "piece", 0, &got));
    address_of(pool)[8192] = 7;
    assert_int_equal(address_of(got)[0], 7);
    memset(cw_array_data(got), 9, 3000);
    assert_int_equal(address_of(pool)[8192 + 2999], 9);
    assert_int_equal(address_of(pool)[8192 + 3000], 1);
    cw_array_close(piece);
    assert_false(ended(client, number));
    OK(cw_remove(client, "piece"));
    OK(cw_ping(client));
    assert_false(ended(client, number)); /* other looks at it */
    cw_array_close(got);
    EVENTUALLY(ended(client, number));
    assert_false(ended(client, number));
    cw_array_close(pool);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void one_range_has_one_loan_as_long_as_it_lasts(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *pool = pool_new(client, POOL, 1), *first, *second, *third;
    uint64_t one, two, three;
    OK(cw_array_at(client, address_of(pool) + 640, 100, &first, &one));
    OK(cw_array_at(client, address_of(pool) + 640, 100, &second, &two));
    assert_int_equal(one, two);
    OK(cw_array_at(client, address_of(pool) + 640, 200, &third, &three));
    assert_int_not_equal(one, three);
    cw_array_close(first);
    assert_false(ended(client, one));
    cw_array_close(second);
    assert_true(ended(client, one)); /* nobody else ever knew of it */
    OK(cw_array_at(client, address_of(pool) + 640, 100, &first, &two));
    assert_int_not_equal(one, two);
    cw_array_close(first);
    assert_true(ended(client, two));
    cw_array_close(third);
    assert_true(ended(client, three));
    cw_array_close(pool);
    cw_client_unref(client);
}

static void the_memory_stays_when_the_pool_is_closed_too_early(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *pool = pool_new(client, POOL, 5), *piece, *next;
    uint64_t number;
    OK(cw_array_at(client, address_of(pool) + POOL / 2, 5000, &piece, &number));
    uint8_t *was = address_of(pool);
    cw_array_close(pool);
    next = bytes_new(client, POOL, 6);
    assert_ptr_not_equal(cw_array_data(next), was);
    assert_true(bytes_are(piece, 5000, 5));
    cw_array_close(next);
    cw_array_close(piece);
    assert_true(ended(client, number));
    next = bytes_new(client, POOL, 6);
    assert_ptr_equal(cw_array_data(next), was);
    cw_array_close(next);
    cw_client_unref(client);
}

static void what_is_not_ours_is_no_loan(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *pool = pool_new(client, 1000, 1), *array = NULL;
    uint64_t number = 77;
    char here[64];
    assert_int_equal(cw_array_at(client, here, 64, &array, &number), -ENOENT);
    assert_int_equal(cw_array_at(client, address_of(pool), 4000, &array, &number), -ENOENT);
    assert_int_equal(cw_array_at(client, address_of(pool) + 8192, 64, &array, &number), -ENOENT);
    assert_int_equal(cw_array_at(client, NULL, 64, &array, &number), -ENOENT);
    cw_array *plain = bytes_new(client, 1000, 1);
    assert_int_equal(cw_array_at(client, address_of(plain), 64, &array, &number), -ENOENT);
    cw_array_close(plain);
    assert_int_equal(cw_array_at(client, address_of(pool), UINT64_MAX - 4, &array, &number),
                     -EINVAL);
    assert_int_equal(cw_array_at(client, address_of(pool), 0, &array, &number), -EINVAL);
    assert_null(array);
    assert_int_equal(number, 77);
    assert_int_equal(cw_loan_next(client, &number), -EAGAIN);
    cw_array_close(pool);
    cw_client_unref(client);
}

/* Odd places are rounded for the books alone. */
static void pieces_of_any_place_and_size(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *pool = pool_new(client, POOL, 1);
    for (int i = 0; i < 200; i++) {
        cw_array *piece, *got;
        uint64_t number, size = (uint64_t)(1 + i * 7), at = (uint64_t)i * 4099;
        cw_handle handle;
        OK(cw_array_at(client, address_of(pool) + at, size, &piece, &number));
        memset(cw_array_data(piece), i, size);
        OK(cw_array_export(piece, 1, &handle));
        cw_array_close(piece);
        int64_t count = (int64_t)size;
        const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
        OK(cw_array_open(other, &handle, &layout, 0, &got));
        assert_true(bytes_are(got, count, i));
        cw_array_close(got);
        EVENTUALLY(ended(client, number));
    }
    cw_array_close(pool);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void numbers_of_a_slab_run_out_with_an_error(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *pool = pool_new(client, 64 << 20, 1); /* has a slab of its own */
    cw_array *pieces[CW_LARGE_SLAB_BLOCKS], *one_more = NULL;
    uint64_t number;
    for (uint32_t i = 1; i < CW_LARGE_SLAB_BLOCKS; i++)
        OK(cw_array_at(client, address_of(pool) + i * 4096, 4096, &pieces[i], &number));
    assert_int_equal(cw_array_at(client, address_of(pool), 64, &one_more, &number), -EDQUOT);
    assert_non_null(strstr(cw_error(), "blocks of the slab"));
    cw_array_close(pieces[1]);
    OK(cw_array_at(client, address_of(pool), 64, &one_more, &number));
    cw_array_close(one_more);
    for (uint32_t i = 2; i < CW_LARGE_SLAB_BLOCKS; i++)
        cw_array_close(pieces[i]);
    cw_array_close(pool);
    cw_client_unref(client);
}

/* The outer block goes with its holder, the piece stays; then the slab is the next client's. */
static void a_piece_outlives_its_lender(void **state) {
    (void)state;
    cw_client *client = client_open();
    int child = fork();
    if (child == 0) {
        cw_client *own;
        CHILD(cw_connect(NULL, NULL, 0, &own) == 0);
        cw_array *pool = pool_new(own, POOL, 3), *piece;
        uint64_t number;
        CHILD(cw_array_at(own, address_of(pool) + 65536, 70000, &piece, &number) == 0);
        CHILD(cw_array_put(piece, "left", 0, NULL, 0) == 0);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    cw_array *got;
    OK(cw_get(client, "left", 0, &got));
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) == 1);
    /* The outer block is free some turns later: who asks before finds no room in that slab. */
    EVENTUALLY(counter(client, CW_COUNTER_blocks_reclaimed) > 0);
    cw_array *mine = bytes_new(client, POOL / 2, 4), *more = bytes_new(client, POOL / 4, 5);
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) == 0); /* shown at the end of its turn */
    assert_true(bytes_are(got, 70000, 3));
    OK(cw_remove(client, "left"));
    cw_array_close(got);
    assert_true(bytes_are(mine, POOL / 2, 4) && bytes_are(more, POOL / 4, 5));
    cw_array_close(mine);
    cw_array_close(more);
    cw_client_unref(client);
}

/* Others may still look at it, but nobody can tell: what this process holds itself is what counts.
 */
static void without_its_broker_a_loan_ends_with_the_last_lease_here(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *pool = pool_new(client, POOL, 1), *named, *held, *own, *got;
    uint64_t one, two, three, number;
    OK(cw_array_at(client, address_of(pool) + 4096, 100, &named, &one));
    OK(cw_array_at(client, address_of(pool) + 8192, 100, &held, &two));
    OK(cw_array_at(client, address_of(pool) + 16384, 100, &own, &three));
    OK(cw_array_put(named, "named", 0, NULL, 0));
    OK(cw_array_put(held, "held", 0, NULL, 0));
    OK(cw_get(other, "named", 0, &got));
    cw_array_close(named);
    OK(cw_ping(client));
    assert_int_equal(cw_loan_next(client, &number), -EAGAIN);
    kill(cw_client_broker_pid(client), SIGKILL);
    EVENTUALLY(cw_client_check(client) == -ECONNRESET);
    assert_true(ended(client, one));
    assert_false(ended(client, two));
    assert_true(bytes_are(got, 100, 1));
    assert_true(bytes_are(held, 100, 1));
    cw_array_close(held);
    assert_true(ended(client, two));
    cw_array_close(own);
    assert_true(ended(client, three));
    assert_false(ended(client, three));
    cw_array_close(got);
    cw_array_close(pool);
    cw_client_unref(other);
    cw_client_unref(client);
}

#define LENDERS 3
#define LOANS   400

struct lender {
    cw_client *client, *other;
    uint8_t *at;
    bool failed;
    uint64_t numbers[LOANS];
};

/* 0, or what went wrong is printed: cw_error() is this thread's. */
static bool went_wrong(int code, const char *what) {
    if (code)
        print_message("# %s: %d, %s\n", what, code, cw_error());
    return code != 0;
}

/* Lends ranges of its own, some of them also to another client; looks that nobody else's come in.
 */
static void *lend(void *context) {
    struct lender *lender = context;
    for (int i = 0; i < LOANS && !lender->failed; i++) {
        cw_array *piece, *got = NULL;
        cw_handle handle;
        int64_t count = 64 + i % 7 * 100;
        const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
        uint8_t *at = lender->at + i % 5 * 1024;
        int code;
        while ((code = cw_array_at(lender->client, at, (uint64_t)count, &piece,
                                   &lender->numbers[i])) == -EDQUOT)
            usleep(50); /* all numbers of the slab are in use: some are on their way back */
        lender->failed = went_wrong(code, "at");
        if (lender->failed)
            break;
        memset(cw_array_data(piece), i, (size_t)count);
        if (i % 2)
            lender->failed = went_wrong(cw_array_export(piece, 1, &handle), "export");
        cw_array_close(piece);
        if (i % 2 && !lender->failed)
            lender->failed =
                went_wrong(cw_array_open(lender->other, &handle, &layout, 0, &got), "open") ||
                went_wrong(!bytes_are(got, count, i), "bytes");
        cw_array_close(got);
    }
    return NULL;
}

static void threads_lend_and_each_loan_is_told_once(void **state) {
    (void)state;
    static struct lender lenders[LENDERS];
    static uint8_t told[LENDERS * LOANS + 64], made[LENDERS * LOANS + 64];
    cw_client *client = client_open(), *other = client_open();
    cw_array *pool = pool_new(client, POOL, 1), *piece;
    uint64_t number, first;
    OK(cw_array_at(client, address_of(pool), 64, &piece, &first)); /* where the numbers begin */
    pthread_t threads[LENDERS];
    for (int i = 0; i < LENDERS; i++) {
        lenders[i] = (struct lender){
            .client = client, .other = other, .at = address_of(pool) + (i + 1) * 65536};
        assert_int_equal(pthread_create(&threads[i], NULL, lend, &lenders[i]), 0);
    }
    for (int i = 0; i < 2000; i++)
        if (cw_loan_next(client, &number) == 0)
            told[number - first]++;
    for (int i = 0; i < LENDERS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(lenders[i].failed);
        for (int n = 0; n < LOANS; n++)
            made[lenders[i].numbers[n] - first] = 1;
    }
    cw_array_close(piece);
    made[0] = 1;
    int64_t end_ns = test_now_ns() + 60 * SECOND;
    while (memcmp(made, told, sizeof made) != 0 && test_now_ns() < end_ns)
        if (cw_loan_next(client, &number) == 0)
            told[number - first]++;
    assert_memory_equal(made, told, sizeof made);
    cw_array_close(pool);
    cw_client_unref(other);
    cw_client_unref(client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(a_piece_is_seen_by_others_and_told_when_all_let_go),
        TEST(one_range_has_one_loan_as_long_as_it_lasts),
        TEST(the_memory_stays_when_the_pool_is_closed_too_early),
        TEST(what_is_not_ours_is_no_loan),
        TEST(pieces_of_any_place_and_size),
        TEST(numbers_of_a_slab_run_out_with_an_error),
        TEST(a_piece_outlives_its_lender),
        TEST(without_its_broker_a_loan_ends_with_the_last_lease_here),
        TEST(threads_lend_and_each_loan_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
