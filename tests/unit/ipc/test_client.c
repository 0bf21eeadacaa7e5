/*
 * The promises of cableway.h about arrays, names and handles, against a real broker.
 */
#include <sys/resource.h>

#include "ipc/array/array.h"
#include "tests/unit/ipc/client_support.h"

static void the_first_client_starts_a_broker(void **state) {
    (void)state;
    cw_client *client = NULL;
    assert_int_equal(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client), -ECONNRESET);
    client = client_open();
    OK(cw_ping(client));
    OK(cw_client_check(client));
    assert_int_not_equal(cw_client_instance(client), 0);
    assert_true(cw_client_broker_pid(client) > 1);
    assert_non_null(strstr(cw_client_address(client), getenv("CABLEWAY_DIR")));
    cw_client *second;
    OK(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &second));
    assert_int_equal(cw_client_instance(client), cw_client_instance(second));
    cw_client_unref(second);
    cw_client_unref(client);
}

static void an_array_is_put_here_and_got_there(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 100000, 7);
    assert_non_null(array);
    OK(cw_array_put(array, "here/there", 0, NULL, 0));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        cw_client *mine;
        cw_array *got;
        CHILD(cw_client_forked(client) == 1);
        CHILD(cw_ping(client) == -EINVAL);
        CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
        CHILD(cw_get(mine, "here/there", 0, &got) == 0);
        CHILD(bytes_are(got, 100000, 7));
        memset(cw_array_data(got), 8, 100000);
        cw_array_close(got);
        cw_client_unref(mine);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_true(bytes_are(array, 100000, 8));
    cw_array_close(array);
    OK(cw_get(client, "here/there", CW_READONLY, &array));
    assert_true(cw_array_readonly(array));
    assert_true(bytes_are(array, 100000, 8));
    cw_array_close(array);
    cw_client_unref(client);
}

static void names_are_taken_replaced_and_removed(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *first = bytes_new(client, 1000, 1), *second = bytes_new(client, 2000, 2), *got, *old;
    OK(cw_array_put(first, "x", 0, NULL, 0));
    assert_int_equal(cw_array_put(second, "x", 0, NULL, 0), -EEXIST);
    OK(cw_get(client, "x", 0, &old));
    OK(cw_array_put(second, "x", CW_REPLACE, NULL, 0));
    OK(cw_get(client, "x", 0, &got));
    assert_true(bytes_are(got, 2000, 2));
    assert_true(bytes_are(old, 1000, 1)); /* who held it keeps it */
    cw_array_close(got);
    cw_array_close(first);
    assert_true(bytes_are(old, 1000, 1));
    cw_array_close(old);
    OK(cw_remove(client, "x"));
    assert_int_equal(cw_remove(client, "x"), -ENOENT);
    assert_non_null(strstr(cw_error(), "\"x\""));
    assert_int_equal(cw_get(client, "x", 0, &got), -ENOENT);
    cw_array_close(second);
    cw_client_unref(client);
}

static void names_are_listed_and_described(void **state) {
    (void)state;
    cw_client *client = client_open(), *other;
    cw_array *array = bytes_new(client, 12, 1);
    OK(cw_connect(NULL, "other", 0, &other));
    char name[32], *names;
    uint64_t count;
    for (int i = 0; i < 2000; i++) { /* the directory grows meanwhile */
        snprintf(name, sizeof name, "list/%d", i);
        OK(cw_array_put(array, name, 0, NULL, 0));
    }
    OK(cw_array_put(array, "else", CW_KEEP, NULL, 0));
    OK(cw_names(client, "list/", &names, &count));
    assert_int_equal(count, 2000);
    const char *at = names;
    for (uint64_t i = 0; i < count; i++, at += strlen(at) + 1)
        assert_memory_equal(at, "list/", 5);
    cw_free(names);
    OK(cw_names(client, "", &names, &count));
    assert_int_equal(count, 2001);
    cw_free(names);
    OK(cw_names(other, NULL, &names, &count)); /* another namespace sees none of them */
    assert_int_equal(count, 0);
    cw_free(names);
    assert_int_equal(cw_get(other, "else", 0, &array), -ENOENT);
    static cw_name_info info;
    OK(cw_name_stat(client, "else", &info));
    assert_string_equal(info.name, "else");
    assert_string_equal(info.dtype, "|u1");
    assert_string_equal(info.device, "cpu");
    assert_int_equal(info.ndim, 1);
    assert_int_equal(info.shape[0], 12);
    assert_int_equal(info.nbytes, 12);
    assert_int_equal(info.owner_pid, getpid());
    assert_int_equal(info.holders, 1);
    assert_int_equal(info.references, 2001);
    assert_int_equal(info.keep, 1);
    assert_true(info.created_ns > 0);
    assert_int_equal(cw_name_stat(client, "nothing", &info), -ENOENT);
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "list/%d", i);
        OK(cw_remove(client, name));
    }
    OK(cw_remove(client, "else"));
    cw_array_close(array);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void bad_names_break_a_rule(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",         "/a",    "a/",       "a//b",         ".",
        "..",       "a/./b", "../a",     "a\nb",         "a\x7f",
        "\xc2\x80", "\xff",  "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "a/.."};
    static const char *const good[] = {
        "a", "a.b", "...", "a/b/c", "\xc3\xbc", "a b", "\xf0\x9f\x99\x82"};
    char name[202];
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cw_name_check(bad[i]), -EINVAL);
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++)
        OK(cw_name_check(good[i]));
    assert_int_equal(cw_name_check(NULL), -EINVAL);
    memset(name, 'n', 201);
    name[201] = 0;
    assert_int_equal(cw_name_check(name), -EINVAL);
    name[200] = 0;
    OK(cw_name_check(name));
    cw_client *client;
    assert_int_equal(cw_connect(NULL, "a/b", CW_CONNECT_NO_START, &client), -EINVAL);
}

/* Their slabs have numbers for as many as lie in them, and no large rest that nobody can use. */
static void small_arrays_take_little_memory(void **state) {
    (void)state;
    enum { SMALL = 40000 };
    cw_client *client = client_open();
    cw_array **arrays = malloc(SMALL * sizeof *arrays);
    assert_non_null(arrays);
    for (int i = 0; i < SMALL; i++) {
        arrays[i] = bytes_new(client, 8, (uint8_t)i);
        assert_non_null(arrays[i]);
    }
    OK(cw_ping(client));
    uint64_t bytes = CW_LOAD(M1, &client->root->gauges[CW_GAUGE_bytes], relaxed);
    assert_in_range(bytes, SMALL * 64, SMALL * 400);
    cw_array *large = bytes_new(client, 4 << 20, 5); /* others have their room as before */
    assert_non_null(large);
    cw_array_close(large);
    for (int i = 0; i < SMALL; i++) {
        assert_true(bytes_are(arrays[i], 8, (uint8_t)i));
        cw_array_close(arrays[i]);
    }
    free(arrays);
    cw_client_unref(client);
}

static void bad_layouts_are_refused(void **state) {
    (void)state;
    cw_client *client = client_open();
    const int64_t negative[] = {3, -1}, huge[] = {1ll << 40, 1ll << 40}, two[] = {2, 2};
    const int64_t far_apart[] = {INT64_MAX, 1};
    int64_t many[CW_NDIM_MAX + 1] = {0};
    char *dtype = malloc(CW_DTYPE_MAX + 2);
    memset(dtype, 'x', CW_DTYPE_MAX + 1);
    dtype[CW_DTYPE_MAX + 1] = 0;
    const cw_layout bad[] = {
        {.ndim = 2, .itemsize = 8, .shape = negative, .dtype = "<f8"},
        {.ndim = 2, .itemsize = 8, .shape = huge, .dtype = "<f8"},
        {.ndim = 2, .itemsize = 8, .shape = two, .strides = far_apart, .dtype = "<f8"},
        {.ndim = CW_NDIM_MAX + 1, .itemsize = 8, .shape = many, .dtype = "<f8"},
        {.ndim = 2, .itemsize = 8, .shape = NULL, .dtype = "<f8"},
        {.ndim = 2, .itemsize = 8, .shape = two, .dtype = NULL},
        {.ndim = 2, .itemsize = 8, .shape = two, .dtype = ""},
        {.ndim = 2, .itemsize = 8, .shape = two, .dtype = "\n"},
        {.ndim = 2, .itemsize = 8, .shape = two, .dtype = dtype},
    };
    cw_array *array;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cw_array_new(client, "cpu", &bad[i], 0, &array), -EINVAL);
    assert_int_equal(cw_array_new(client, "cpu", NULL, 0, &array), -EINVAL);
    const cw_layout good = {.ndim = 2, .itemsize = 8, .shape = two, .dtype = "<f8"};
    assert_int_equal(cw_array_new(client, "cuda:0", &good, 0, &array), -ENODEV);
    assert_non_null(strstr(cw_error(), "cpu"));
    assert_int_equal(cw_array_new(client, "tpu", &good, 0, &array), -EINVAL);
    assert_int_equal(cw_array_new(client, NULL, &good, 0, &array), -EINVAL);
    assert_int_equal(cw_array_new(NULL, "cpu", &good, 0, &array), -EINVAL);
    const int64_t more[] = {1ll << 45};
    const cw_layout too_much = {.ndim = 1, .itemsize = 1, .shape = more, .dtype = "|u1"};
    assert_int_equal(cw_array_new(client, "cpu", &too_much, 0, &array), -EDQUOT);
    free(dtype);
    cw_client_unref(client);
}

static void empty_scalar_fortran_and_backward_arrays_keep_their_layout(void **state) {
    (void)state;
    cw_client *client = client_open();
    const int64_t none[] = {3, 0, 5}, table[] = {2, 3}, columns[] = {8, 16};
    const int64_t backward[] = {-24, -8}, one[] = {3}, back[] = {-1};
    cw_array *array, *got;
    cw_layout layout = {.ndim = 3, .itemsize = 8, .shape = none, .dtype = "<f8"};
    OK(cw_array_new(client, "cpu", &layout, CW_ZERO, &array));
    assert_int_equal(cw_array_nbytes(array), 0);
    OK(cw_array_put(array, "layout/empty", 0, NULL, 0));
    OK(cw_get(client, "layout/empty", 0, &got));
    cw_array_layout(got, &layout);
    assert_int_equal(layout.ndim, 3);
    assert_int_equal(layout.shape[2], 5);
    cw_array_close(got);
    cw_array_close(array);
    OK(cw_remove(client, "layout/empty"));
    layout = (cw_layout){.ndim = 0, .itemsize = 8, .dtype = "<f8"};
    OK(cw_array_new(client, "cpu", &layout, CW_ZERO, &array));
    assert_int_equal(cw_array_nbytes(array), 8);
    cw_array_close(array);
    layout =
        (cw_layout){.ndim = 2, .itemsize = 8, .shape = table, .strides = columns, .dtype = "<f8"};
    OK(cw_array_new(client, "cpu", &layout, 0, &array));
    assert_int_equal(cw_array_nbytes(array), 48);
    assert_ptr_equal(cw_array_data(array), array->bytes);
    double *values = cw_array_data(array);
    for (int i = 0; i < 6; i++)
        values[i] = i;
    /* A view of the same bytes from the end to the begin: element 0 is the last one. */
    layout.strides = backward;
    assert_int_equal(cw_array_put(array, "layout/back", 0, &layout, 32), -EINVAL);
    assert_int_equal(cw_array_put(array, "layout/back", 0, &layout, 48), -EINVAL);
    OK(cw_array_put(array, "layout/back", 0, &layout, 40));
    OK(cw_get(client, "layout/back", 0, &got));
    values = cw_array_data(got);
    assert_true(values[0] == 5 && values[-5] == 0);
    assert_int_equal(cw_array_nbytes(got), 48);
    cw_layout found;
    cw_array_layout(got, &found);
    assert_int_equal(found.strides[0], -24);
    cw_array_close(got);
    layout = (cw_layout){.ndim = 1, .itemsize = 1, .shape = one, .strides = back, .dtype = "|u1"};
    assert_int_equal(cw_array_put(array, "layout/y", 0, &layout, 1), -EINVAL);
    assert_int_equal(cw_array_put(array, "layout/y", 0, NULL, 1), -EINVAL);
    assert_int_equal(cw_array_put(array, "layout/y", 77, NULL, 0), -EINVAL);
    cw_array_close(array);
    OK(cw_remove(client, "layout/back"));
    cw_client_unref(client);
}

static void bytes_are_copied_in_and_out_within_bounds(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 100, 0), *got;
    uint8_t bytes[100];
    memset(bytes, 5, sizeof bytes);
    OK(cw_array_write(array, 50, bytes, 50));
    OK(cw_array_read(array, 49, bytes, 51));
    assert_int_equal(bytes[0], 0);
    assert_int_equal(bytes[1], 5);
    assert_int_equal(cw_array_write(array, 50, bytes, 51), -EINVAL);
    assert_int_equal(cw_array_read(array, 101, bytes, 0), -EINVAL);
    assert_int_equal(cw_array_read(array, UINT64_MAX, bytes, 2), -EINVAL);
    OK(cw_array_put(array, "copy", 0, NULL, 0));
    OK(cw_get(client, "copy", CW_READONLY, &got));
    assert_int_equal(cw_array_write(got, 0, bytes, 1), -EINVAL);
    cw_array_close(got);
    OK(cw_remove(client, "copy"));
    cw_array_close(array);
    cw_client_unref(client);
}

static int write_readonly(void *context) {
    cw_client *mine;
    cw_array *got;
    (void)context;
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    CHILD(cw_get(mine, "readonly", CW_READONLY, &got) == 0);
    signal(SIGSEGV, SIG_DFL);
    *(volatile uint8_t *)cw_array_data(got) = 1;
    return 0;
}

static void a_write_to_a_readonly_mapping_faults(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 100, 0);
    OK(cw_array_put(array, "readonly", 0, NULL, 0));
    cw_array_close(array); /* which the child would have inherited, writable */
    assert_int_equal(in_child(write_readonly, NULL), 128 + SIGSEGV);
    OK(cw_remove(client, "readonly"));
    cw_client_unref(client);
}

static int read_beside_inherited(void *context) {
    cw_client *mine;
    cw_array *inherited = context, *got, *part;
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    CHILD(cw_get(mine, "address", CW_READONLY, &got) == 0);
    CHILD(cw_array_data(got) == cw_array_data(inherited) && cw_array_readonly(got));
    CHILD(cw_get(mine, "address", 0, &part) == 0);
    CHILD(cw_array_data(part) == cw_array_data(inherited) && !cw_array_readonly(part));
    CHILD(cw_array_renew(inherited, mine) == 0);
    cw_array_close(inherited);
    cw_array_close(part);
    cw_array_close(got);
    CHILD(cw_get(mine, "address", CW_READONLY, &got) == 0);
    signal(SIGSEGV, SIG_DFL);
    *(volatile uint8_t *)cw_array_data(got) = 1; /* nothing writable is open any more */
    return 0;
}

static int write_when_writers_are_gone(void *context) {
    cw_array *got;
    cw_client *mine;
    (void)context;
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    CHILD(cw_get(mine, "address", CW_READONLY, &got) == 0);
    volatile uint8_t *bytes = cw_array_data(got);
    for (int i = 0; i < 3; i++) {
        cw_array *first, *second;
        CHILD(cw_get(mine, "address", 0, &first) == 0);
        CHILD(cw_get(mine, "address", 0, &second) == 0);
        CHILD(cw_array_data(first) == bytes && cw_array_data(second) == bytes);
        *bytes = (uint8_t)i;
        cw_array_close(first);
        *bytes = (uint8_t)i;
        cw_array_close(second);
    }
    signal(SIGSEGV, SIG_DFL);
    *bytes = 1;
    return 0;
}

static void an_array_has_one_address_in_a_process(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, 3 * 4096 + 100, 0), *held[4];
    uint8_t *bytes = cw_array_data(array);
    OK(cw_array_put(array, "address", 0, NULL, 0));
    /* Whoever comes beside a writable one lies where it lies, over any connection. */
    OK(cw_get(client, "address", CW_READONLY, &held[0]));
    OK(cw_get(other, "address", CW_READONLY, &held[1]));
    OK(cw_get(other, "address", 0, &held[2]));
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(cw_array_data(held[i]), bytes);
        assert_int_equal(cw_array_readonly(held[i]), i < 2);
    }
    assert_int_equal(in_child(read_beside_inherited, array), 0); /* others are inherited, too */
    for (int i = 0; i < 3; i++)
        cw_array_close(held[i]);
    assert_int_equal(in_child(read_beside_inherited, array), 128 + SIGSEGV);
    cw_array_close(array);
    /* A read-only one first: a writable one beside it lies there, as long as it is. */
    OK(cw_get(other, "address", CW_READONLY, &held[0]));
    uint8_t *apart = cw_array_data(held[0]);
    assert_ptr_not_equal(apart, bytes);
    OK(cw_get(client, "address", 0, &held[1]));
    OK(cw_get(other, "address", 0, &held[2]));
    assert_ptr_equal(cw_array_data(held[1]), apart);
    assert_ptr_equal(cw_array_data(held[2]), apart);
    apart[3 * 4096 + 99] = 7;
    cw_array_close(held[0]);
    OK(cw_get(client, "address", CW_READONLY, &held[0]));
    assert_ptr_equal(cw_array_data(held[0]), apart);
    /* What overlaps is seen by whoever compares addresses. */
    const cw_pair pair = {
        .target = held[1], .target_bytes = 1, .source = held[0], .size_bytes = 3 * 4096};
    assert_int_equal(cw_array_copy_many(&pair, 1, NULL), -EINVAL);
    for (int i = 0; i < 3; i++)
        cw_array_close(held[i]);
    assert_int_equal(in_child(write_when_writers_are_gone, NULL), 128 + SIGSEGV);
    OK(cw_remove(client, "address"));
    cw_client_unref(other);
    cw_client_unref(client);
}

static void a_handle_in_flight_holds_its_array(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    int64_t count = 5000;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array = bytes_new(client, count, 3), *got;
    cw_handle handle, second;
    OK(cw_array_export(array, 1, &handle));
    OK(cw_array_export(array, 1, &second));
    cw_array_close(array); /* the usual case: the sender drops it first */
    OK(cw_ping(client));
    OK(cw_array_open(other, &handle, &layout, 0, &got));
    assert_true(bytes_are(got, count, 3));
    cw_array_close(got);
    OK(cw_handle_discard(other, &second));
    OK(cw_ping(other));
    int code;
    EVENTUALLY(({
        code = cw_array_open(other, &handle, &layout, 0, &got);
        if (code == 0)
            cw_array_close(got);
        code == -ESTALE;
    }));
    handle.instance++;
    assert_int_equal(cw_array_open(other, &handle, &layout, 0, &got), -ESTALE);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void handles_that_lie_are_refused(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    int64_t count = 5000;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array = bytes_new(client, count, 3), *got;
    cw_handle good, bad;
    OK(cw_array_export(array, 0, &good));
    struct chance chance = chance_init(1);
    for (int i = 0; i < 2000; i++) {
        bad = good;
        uint64_t noise = chance_next(&chance) >> chance_below(&chance, 64);
        switch (chance_below(&chance, 5)) {
        case 0:
            bad.slab += (uint32_t)noise | 1;
            break;
        case 1:
            bad.block += (uint32_t)noise | 1;
            break;
        case 2:
            bad.gen += noise | 1;
            break;
        case 3:
            bad.offset_bytes = 64 + noise;
            break;
        default:
            bad.size_bytes = 5057 + noise;
        }
        int code = cw_array_open(other, &bad, &layout, 0, &got);
        if (code != -ESTALE && code != -EPROTO && code != -EINVAL)
            fail_msg("%d for slab %u block %u gen %llu offset %llu size %llu", code, bad.slab,
                     bad.block, (unsigned long long)bad.gen, (unsigned long long)bad.offset_bytes,
                     (unsigned long long)bad.size_bytes);
    }
    OK(cw_array_open(other, &good, &layout, 0, &got));
    assert_true(bytes_are(got, count, 3));
    cw_array_close(got);
    cw_array_close(array);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void foreign_memory_is_shared_without_a_copy(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/foreign-%d", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, 10000), 0);
    uint8_t *bytes = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int64_t count = 9000;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array, *got;
    OK(cw_array_adopt(client, fd, 1000, &layout, &array));
    assert_int_equal(cw_array_adopt(client, fd, 1001, &layout, &got), -EINVAL);
    assert_int_equal(cw_array_adopt(client, -1, 0, &layout, &got), -EINVAL);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(cw_array_adopt(client, null, 0, &layout, &got), -EINVAL);
    close(null);
    OK(cw_array_put(array, "foreign", 0, NULL, 0));
    OK(cw_get(other, "foreign", 0, &got));
    memset(bytes + 1000, 9, 9000);
    assert_true(bytes_are(got, 9000, 9));
    memset(cw_array_data(got), 4, 9000);
    assert_int_equal(bytes[1000], 4);
    cw_array_close(array);
    OK(cw_remove(client, "foreign"));
    assert_true(bytes_are(got, 9000, 4));
    cw_array_close(got);
    /* The slab goes when the last one let it go, and the owner next looks: only its own is left. */
    EVENTUALLY(({
        cw_array_close(bytes_new(client, 1, 0));
        gauge(client, CW_GAUGE_slabs) == 1 && !client->slabs.own->own_next;
    }));
    munmap(bytes, 10000);
    close(fd);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void more_leases_than_a_table_holds(void **state) {
    (void)state;
    enum { COUNT = 3 * 4096 };
    cw_client *client = client_open();
    cw_array **arrays = calloc(COUNT, sizeof *arrays);
    for (int i = 0; i < COUNT; i++) {
        arrays[i] = bytes_new(client, 8, i & 0xff);
        assert_non_null(arrays[i]);
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(bytes_are(arrays[i], 8, i & 0xff));
    for (int i = 0; i < COUNT; i++)
        cw_array_close(arrays[i]);
    assert_int_equal(client->leases.held, 0);
    free(arrays);
    cw_client_unref(client);
}

static void replaced_arrays_give_their_memory_back(void **state) {
    (void)state;
    cw_client *client = client_open();
    const int64_t count = 24 << 20;
    for (int i = 0; i < 20; i++) {
        cw_array *array = bytes_new(client, count, i);
        assert_non_null(array);
        OK(cw_array_put(array, "recycled", CW_REPLACE, NULL, 0));
        cw_array_close(array);
    }
    /* One is named, one is made; a broker that is late gives some back later: without it, 20. */
    assert_true(gauge(client, CW_GAUGE_bytes) < 10 * (uint64_t)count);
    cw_array *got;
    OK(cw_get(client, "recycled", 0, &got));
    assert_true(bytes_are(got, count, 19));
    cw_array_close(got);
    OK(cw_remove(client, "recycled"));
    cw_client_unref(client);
}

static void free_slabs_beyond_the_cache_are_given_up(void **state) {
    (void)state;
    setenv("CABLEWAY_CACHE_BYTES", "1000000", 1);
    cw_client *client = client_open();
    unsetenv("CABLEWAY_CACHE_BYTES");
    uint64_t before = gauge(client, CW_GAUGE_slabs);
    cw_array *array = bytes_new(client, 8 << 20, 1);
    EVENTUALLY(gauge(client, CW_GAUGE_slabs) == before + 1);
    cw_array_close(array);
    OK(cw_ping(client));
    EVENTUALLY(gauge(client, CW_GAUGE_slabs) == before);
    cw_client_unref(client);
}

/* Bytes of all slabs that a client has, and how many these are. */
static uint64_t slab_bytes(cw_client *client, uint32_t *count) {
    uint64_t bytes = 0;
    *count = 0;
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next, ++*count)
        bytes += slab->size_bytes;
    return bytes;
}

static void slabs_grow_with_what_is_put_into_them_not_with_one_large_array(void **state) {
    (void)state;
    cw_client *client = client_open();
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) == 0);
    uint32_t slabs;
    uint64_t used = 48ull << 20, each = 1640ull << 10;
    cw_array *large = bytes_new(client, (int64_t)used, 1), *arrays[5];
    for (int i = 0; i < 5; i++, used += each)
        arrays[i] = bytes_new(client, (int64_t)each, 1);
    assert_in_range(slab_bytes(client, &slabs), used, used + (4 << 20));
    for (int i = 0; i < 5; i++)
        cw_array_close(arrays[i]);
    cw_array_close(large);
    cw_client_unref(client);
}

static void many_large_arrays_share_slabs(void **state) {
    (void)state;
    cw_client *client = client_open();
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) == 0);
    uint32_t slabs;
    cw_array *arrays[40]; /* each larger than the first slab would be */
    for (int i = 0; i < 40; i++)
        arrays[i] = bytes_new(client, 3 << 20, 1);
    slab_bytes(client, &slabs);
    assert_in_range(slabs, 1, 10);
    for (int i = 0; i < 40; i++)
        cw_array_close(arrays[i]);
    cw_client_unref(client);
}

static void new_zeroed_memory_is_zero_also_when_used_before(void **state) {
    (void)state;
    cw_client *client = client_open();
    int64_t count = 300000;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    for (int i = 0; i < 5; i++) {
        cw_array *array;
        OK(cw_array_new(client, "cpu", &layout, CW_ZERO, &array));
        assert_true(bytes_are(array, count, 0));
        memset(cw_array_data(array), 0xee, (size_t)count);
        cw_array_close(array);
    }
    cw_client_unref(client);
}

static void limits_are_errors_of_their_own(void **state) {
    (void)state;
    setenv("CABLEWAY_MAX_CLIENT_SLABS", "5", 1);
    setenv("CABLEWAY_MAX_NAMES", "20", 1);
    setenv("CABLEWAY_MAX_CLIENT_TRANSITS", "50", 1);
    cw_client *client = client_open(); /* its broker has these limits */
    unsetenv("CABLEWAY_MAX_CLIENT_SLABS");
    unsetenv("CABLEWAY_MAX_NAMES");
    unsetenv("CABLEWAY_MAX_CLIENT_TRANSITS");
    cw_array *arrays[6];
    for (int i = 0; i < 5; i++)
        assert_non_null(arrays[i] = bytes_new(client, 17 << 20, i));
    assert_null(bytes_new(client, 17 << 20, 5));
    assert_non_null(strstr(cw_error(), "max_client_slabs"));
    for (int i = 0; i < 5; i++)
        cw_array_close(arrays[i]);
    cw_array *array = bytes_new(client, 40 << 20, 1); /* what was kept for speed made room */
    assert_non_null(array);
    char name[32];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "name/%d", i);
        OK(cw_array_put(array, name, 0, NULL, 0));
    }
    assert_int_equal(cw_array_put(array, "one more", 0, NULL, 0), -EDQUOT);
    assert_non_null(strstr(cw_error(), "max_names"));
    OK(cw_array_put(array, name, CW_REPLACE, NULL, 0));
    cw_handle handles[50], handle;
    for (int i = 0; i < 50; i++)
        OK(cw_array_export(array, 1, &handles[i]));
    assert_int_equal(cw_array_export(array, 1, &handle), -EDQUOT);
    assert_non_null(strstr(cw_error(), "max_client_transits"));
    OK(cw_array_export(array, 0, &handle));
    OK(cw_handle_discard(client, &handles[7]));
    OK(cw_array_export(array, 1, &handle));
    cw_array_close(array);
    cw_client_unref(client);
}

static int make_and_die(void *context) {
    cw_client *mine;
    (void)context;
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    cw_array *kept = bytes_new(mine, 100000, 5);
    CHILD(kept && cw_array_put(kept, "survivor", 0, NULL, 0) == 0);
    CHILD(bytes_new(mine, 200000, 6) != NULL); /* private: goes with us */
    kill(getpid(), SIGKILL);
    return 0;
}

/* No descriptor is to be had for it at that moment. */
static void a_dead_makers_slab_that_cannot_be_opened_is_an_orphan_again(void **state) {
    (void)state;
    cw_client *client = client_open();
    struct rlimit before, none;
    cw_array *array = NULL;
    int64_t count = 300000;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    assert_int_equal(in_child(make_and_die, NULL), 128 + SIGKILL);
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) == 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int code = cw_array_new(client, "cpu", &layout, 0, &array);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(code < 0);
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) == 1);
    OK(cw_array_new(client, "cpu", &layout, 0, &array));
    assert_int_equal(gauge(client, CW_GAUGE_orphan_slabs), 0);
    cw_array_close(array);
    cw_client_unref(client);
}

static void a_dead_makers_slab_is_adopted(void **state) {
    (void)state;
    cw_client *client = client_open();
    uint64_t adopted = counter(client, CW_COUNTER_slabs_adopted);
    assert_int_equal(in_child(make_and_die, NULL), 128 + SIGKILL);
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) > 0);
    cw_array *array = bytes_new(client, 300000, 1), *got;
    assert_non_null(array);
    assert_int_equal(counter(client, CW_COUNTER_slabs_adopted), adopted + 1);
    OK(cw_get(client, "survivor", 0, &got));
    assert_ptr_equal(got->slab, array->slab);
    assert_true(bytes_are(got, 100000, 5));
    for (int i = 0; i < 10; i++)
        cw_array_close(bytes_new(client, 300000, 2));
    assert_true(bytes_are(got, 100000, 5));
    cw_array_close(got);
    OK(cw_remove(client, "survivor"));
    cw_array_close(array);
    cw_client_unref(client);
}

static void a_lease_on_a_slab_that_is_adopted_with_a_damaged_table_ends_as_others(void **state) {
    (void)state;
    cw_array *got;
    cw_client *client = client_open();
    uint64_t adopted = counter(client, CW_COUNTER_slabs_adopted);
    assert_int_equal(in_child(make_and_die, NULL), 128 + SIGKILL);
    EVENTUALLY(gauge(client, CW_GAUGE_orphan_slabs) > 0);
    OK(cw_get(client, "survivor", 0, &got));
    /* No whole unit. The block has a name, so the broker does not free it meanwhile. */
    atomic_fetch_add(&got->slab->table->blocks[got->block].length_bytes, 1);
    cw_array *array = bytes_new(client, 300000, 1);
    assert_int_equal(counter(client, CW_COUNTER_slabs_adopted), adopted + 1);
    assert_ptr_not_equal(got->slab, array->slab); /* nothing is carved there */
    assert_true(bytes_are(got, 100000, 5));
    cw_array_close(got);
    OK(cw_remove(client, "survivor"));
    cw_array_close(array);
    cw_client_unref(client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(the_first_client_starts_a_broker),
        TEST(an_array_is_put_here_and_got_there),
        TEST(names_are_taken_replaced_and_removed),
        TEST(names_are_listed_and_described),
        TEST(bad_names_break_a_rule),
        TEST(small_arrays_take_little_memory),
        TEST(bad_layouts_are_refused),
        TEST(empty_scalar_fortran_and_backward_arrays_keep_their_layout),
        TEST(bytes_are_copied_in_and_out_within_bounds),
        TEST(a_write_to_a_readonly_mapping_faults),
        TEST(an_array_has_one_address_in_a_process),
        TEST(a_handle_in_flight_holds_its_array),
        TEST(handles_that_lie_are_refused),
        TEST(foreign_memory_is_shared_without_a_copy),
        TEST(more_leases_than_a_table_holds),
        TEST(replaced_arrays_give_their_memory_back),
        TEST(free_slabs_beyond_the_cache_are_given_up),
        TEST(slabs_grow_with_what_is_put_into_them_not_with_one_large_array),
        TEST(many_large_arrays_share_slabs),
        TEST(new_zeroed_memory_is_zero_also_when_used_before),
        TEST(limits_are_errors_of_their_own),
        TEST(a_dead_makers_slab_that_cannot_be_opened_is_an_orphan_again),
        TEST(a_dead_makers_slab_is_adopted),
        TEST(a_lease_on_a_slab_that_is_adopted_with_a_damaged_table_ends_as_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
