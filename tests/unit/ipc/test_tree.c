/*
 * Trees by the C interface: what is put comes back, whole, in one version; what cannot be is
 * refused; an index that somebody has damaged is never believed.
 */
#include "ipc/array/array.h"
#include "tests/unit/ipc/client_support.h"

#include "ipc/tree/index.h"
#include "ipc/tree/tree.h"

static const int64_t shape_2x3[] = {2, 3}, shape_4[] = {4}, shape_0[] = {0, 5};

/* One array of 1024 bytes, and four leaves: a matrix, its tied alias, a vector, one without bytes.
 */
struct made {
    cw_client *client;
    cw_array *array;
    cw_leaf leaves[4];
};

static void make(struct made *made) {
    made->client = client_open();
    assert_non_null(made->array = bytes_new(made->client, 1024, 7));
    const cw_layout matrix = {.ndim = 2, .itemsize = 4, .shape = shape_2x3, .dtype = "<f4"};
    made->leaves[0] = (cw_leaf){
        .path = "a.weight", .layout = matrix, .array = made->array, .kind = CW_LEAF_PARAMETER};
    made->leaves[1] = made->leaves[0];
    made->leaves[1].path = "b.weight";
    made->leaves[1].alias = 1;
    made->leaves[2] =
        (cw_leaf){.path = "b.mean",
                  .layout = {.ndim = 1, .itemsize = 8, .shape = shape_4, .dtype = "<f8"},
                  .array = made->array,
                  .offset_bytes = 256,
                  .kind = CW_LEAF_BUFFER,
                  .flags = CW_LEAF_TRANSIENT};
    made->leaves[3] = (cw_leaf){
        .path = "none", .layout = {.ndim = 2, .itemsize = 8, .shape = shape_0, .dtype = "<f8"}};
}

static void unmake(struct made *made) {
    cw_array_close(made->array);
    cw_client_unref(made->client);
}

static int put(struct made *made, const char *name, uint64_t if_version, cw_tree **tree) {
    return cw_tree_put(made->client, name, made->leaves, 4, "meta", 4, CW_REPLACE, if_version,
                       tree);
}

static void of_a_part_only_what_its_leaves_need_is_shown(void **state) {
    (void)state;
    struct made made;
    struct cw_index_span spans[2];
    cw_tree *tree;
    make(&made);
    made.leaves[0].offset_bytes = made.leaves[1].offset_bytes = 264; /* 24 bytes */
    made.leaves[2].offset_bytes = 600;                               /* 32 bytes */
    OK(put(&made, "m", CW_ANY_VERSION, &tree));
    cw_index_spans(&tree->index, spans);
    assert_int_equal(tree->index.head->parts, 1);
    assert_int_equal(spans[0].offset_bytes, 256);
    assert_int_equal(spans[0].size_bytes, 600 + 32 - 256);
    cw_tree_close(tree);
    unmake(&made);
}

static void what_was_put_comes_back(void **state) {
    (void)state;
    struct made made;
    cw_tree *put_one, *got;
    cw_tree_info info;
    cw_leaf leaf;
    cw_array *part;
    uint32_t number;
    make(&made);
    OK(put(&made, "m", CW_ANY_VERSION, &put_one));
    cw_client *reader = client_open();
    OK(cw_tree_get(reader, "m", 0, &got));
    cw_tree_look_at(got, &info);
    assert_int_equal(info.leaves, 4);
    assert_int_equal(info.parts, 1);
    assert_int_equal(info.total_bytes, 24 + 32); /* the alias counts once */
    assert_int_equal(info.meta_bytes, 4);
    assert_memory_equal(info.meta, "meta", 4);
    assert_true(info.version > 0 && info.content_hash && info.layout_hash);
    OK(cw_tree_find(got, "b.mean", &number));
    assert_int_equal(number, 2);
    assert_int_equal(cw_tree_find(got, "b.mea", &number), -ENOENT);
    OK(cw_tree_leaf(got, 2, &leaf));
    assert_string_equal(leaf.path, "b.mean");
    assert_string_equal(leaf.layout.dtype, "<f8");
    assert_int_equal(leaf.kind, CW_LEAF_BUFFER);
    assert_int_equal(leaf.flags, CW_LEAF_TRANSIENT | CW_LEAF_HASHED);
    OK(cw_tree_part(got, reader, leaf.part, &part));
    assert_true(cw_array_readonly(part));
    uint64_t hash;
    OK(cw_array_hash(part, leaf.offset_bytes, leaf.size_bytes, &hash));
    assert_true(hash == leaf.hash);
    cw_tree_close(got);
    assert_int_equal(*((uint8_t *)cw_array_data(part) + leaf.offset_bytes), 7); /* it stays */
    cw_array_close(part);
    cw_client_unref(reader);
    cw_tree_close(put_one);
    unmake(&made);
}

static void what_is_not_sealed_is_read_only_to_readers_and_goes_into_no_mount(void **state) {
    (void)state;
    struct made made;
    cw_tree *tree;
    cw_mount *mount;
    cw_array *part;
    make(&made);
    const uint32_t open = CW_REPLACE | CW_TREE_UNSEALED;
    assert_int_equal(cw_tree_put(made.client, "m", made.leaves, 4, NULL, 0, open | CW_TREE_HASH,
                                 CW_ANY_VERSION, &tree),
                     -EINVAL);
    assert_int_equal(cw_tree_put(made.client, "m", made.leaves, 4, NULL, 0, open | CW_REMOTE_READ,
                                 CW_ANY_VERSION, &tree),
                     -EINVAL);
    OK(cw_tree_put(made.client, "m", made.leaves, 4, NULL, 0, open, CW_ANY_VERSION, &tree));
    assert_int_equal(cw_mount_open(tree, made.client, &mount), -EINVAL);
    OK(cw_tree_part(tree, made.client, 0, &part));
    assert_true(cw_array_readonly(part));
    assert_int_equal(cw_array_sealed(part), 0);
    cw_tree_close(tree);
    OK(put(&made, "n", CW_ANY_VERSION, &tree)); /* the same memory: it is sealed from now on */
    assert_int_equal(cw_array_sealed(part), 1);
    assert_int_equal(cw_array_sealed(NULL), -EINVAL);
    cw_array_close(part);
    cw_tree_close(tree);
    unmake(&made);
}

static void a_tree_and_an_array_are_not_taken_for_each_other(void **state) {
    (void)state;
    struct made made;
    cw_array *array;
    cw_tree *tree;
    cw_name_info info;
    make(&made);
    OK(put(&made, "m", CW_ANY_VERSION, NULL));
    assert_int_equal(cw_get(made.client, "m", 0, &array), -EISDIR);
    assert_non_null(strstr(cw_error(), "\"m\" is a tree, not an array: get it as a tree"));
    assert_null(strstr(cw_error(), "cw_")); /* the command and Python say it, too */
    OK(cw_name_stat(made.client, "m", &info));
    assert_string_equal(info.dtype, "tree");
    assert_int_equal(info.shape[0], 4);
    assert_int_equal(info.nbytes, 56);
    assert_string_equal(info.device, "cpu");
    OK(cw_array_put(made.array, "m", CW_REPLACE, NULL, 0));
    assert_int_equal(cw_tree_get(made.client, "m", 0, &tree), -ENOTDIR);
    assert_non_null(strstr(cw_error(), "\"m\" is an array, not a tree: get it as an array"));
    assert_null(strstr(cw_error(), "cw_"));
    assert_int_equal(cw_tree_get(made.client, "n", 0, &tree), -ENOENT);
    unmake(&made);
}

static void memory_comes_back_with_the_last_holder_of_the_index(void **state) {
    (void)state;
    struct made made;
    cw_tree *tree;
    cw_array *part;
    make(&made);
    OK(put(&made, "m", CW_ANY_VERSION, NULL));
    struct cw_block *block = &made.array->slab->table->blocks[made.array->block];
    uint64_t gen = made.array->gen;
    cw_client *reader = client_open();
    OK(cw_tree_get(reader, "m", 0, &tree));
    cw_array_close(made.array);
    OK(cw_remove(made.client, "m"));
    OK(cw_ping(made.client));
    assert_int_equal(cw_block_gen(atomic_load(&block->word)), gen); /* by the index alone */
    OK(cw_tree_part(tree, reader, 0, &part));
    cw_array_close(part);
    cw_tree_close(tree);
    int64_t end_ns = cw_now_ns() + 20 * SECOND;
    while (cw_block_gen(atomic_load(&block->word)) == gen && cw_now_ns() < end_ns)
        OK(cw_ping(reader));
    assert_int_equal(cw_block_gen(atomic_load(&block->word)), gen + 1);
    cw_client_unref(reader);
    cw_client_unref(made.client);
}

static void versions_rise_and_the_one_that_was_said_is_replaced(void **state) {
    (void)state;
    struct made made;
    cw_tree *first, *second, *old;
    cw_tree_info one, two, again;
    make(&made);
    assert_int_equal(put(&made, "m", 7, &first), -ESTALE);
    OK(put(&made, "m", 0, &first));
    cw_tree_look_at(first, &one);
    assert_int_equal(cw_wait_after(made.client, "m", one.version, 0), -ETIMEDOUT);
    assert_int_equal(put(&made, "m", one.version + 1, &second), -ESTALE);
    OK(put(&made, "m", one.version, &second));
    cw_tree_look_at(second, &two);
    assert_true(two.version > one.version);
    OK(cw_wait_after(made.client, "m", one.version, -1));
    OK(cw_tree_get(made.client, "m", one.version, &old)); /* somebody has it: first */
    cw_tree_look_at(old, &again);
    assert_int_equal(again.version, one.version);
    assert_true(again.layout_hash == two.layout_hash && again.content_hash == two.content_hash);
    cw_tree_close(old);
    cw_tree_close(first);
    int code = 0;
    int64_t end_ns = cw_now_ns() + 20 * SECOND;
    while (code == 0 && cw_now_ns() < end_ns) {
        code = cw_tree_get(made.client, "m", one.version, &old);
        if (code == 0)
            cw_tree_close(old);
    }
    assert_int_equal(code, -ENOENT); /* nobody has it */
    uint64_t named;
    OK(cw_tree_name(second, made.client, "best", 0, 0, &named));
    assert_int_equal(cw_tree_name(second, made.client, "best", 0, 0, &named), -EEXIST);
    assert_int_equal(cw_tree_name_at(second, made.client, "best", "cuda:0", 0, 0, &named), -EINVAL);
    assert_int_equal(cw_tree_name_at(second, made.client, "best", "gpu", 0, 0, &named), -ENODEV);
    assert_int_equal(cw_tree_name_at(second, made.client, "best", NULL, 0, 0, &named), -EINVAL);
    assert_int_equal(
        cw_tree_put_at(made.client, "best", "cuda:0", NULL, 0, NULL, 0, 0, CW_ANY_VERSION, NULL),
        -EINVAL);
    OK(cw_tree_get(made.client, "best", named, &old));
    cw_tree_close(old);
    cw_tree_close(second);
    unmake(&made);
}

static void a_handle_opens_the_tree_elsewhere(void **state) {
    (void)state;
    struct made made;
    cw_tree *tree, *opened;
    cw_handle handle;
    cw_tree_info info;
    make(&made);
    OK(put(&made, "m", CW_ANY_VERSION, &tree));
    OK(cw_tree_export(tree, 1, &handle));
    cw_tree_close(tree);
    OK(cw_remove(made.client, "m"));
    cw_client *other = client_open();
    OK(cw_tree_open(other, &handle, 5, &opened));
    cw_tree_look_at(opened, &info);
    assert_int_equal(info.leaves, 4);
    assert_int_equal(info.version, 5);
    cw_tree_close(opened);
    OK(cw_array_export(made.array, 1, &handle)); /* no index */
    assert_int_equal(cw_tree_open(other, &handle, 5, &opened), -EPROTO);
    cw_client_unref(other);
    unmake(&made);
}

static void what_cannot_be_a_tree_is_refused_and_leaves_nothing(void **state) {
    (void)state;
    struct made made;
    cw_tree *tree;
    make(&made);
    const cw_leaf good[4] = {made.leaves[0], made.leaves[1], made.leaves[2], made.leaves[3]};
    made.leaves[3].path = "a.weight"; /* twice */
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    made.leaves[3] = good[3];
    made.leaves[2].offset_bytes = 8; /* overlaps */
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    made.leaves[2].offset_bytes = 1000; /* behind the end */
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    made.leaves[2] = good[2];
    made.leaves[2].path = "line\nbreak";
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    made.leaves[2] = good[2];
    made.leaves[1].alias = 3; /* what stands behind it */
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    made.leaves[1] = good[1];
    made.leaves[2].kind = 9;
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    made.leaves[2] = good[2];
    made.leaves[2].array = NULL;
    assert_int_equal(put(&made, "m", CW_ANY_VERSION, &tree), -EINVAL);
    assert_int_equal(cw_tree_get(made.client, "m", 0, &tree), -ENOENT);
    unmake(&made);
}

/* ---- damaged indexes ---- */

static uint8_t *bytes_of_index(uint64_t *size_bytes) {
    const struct cw_index_part part = {
        .slab = 1, .size_bytes = 1024, .device_kind = CW_DEVICE_HOST};
    const cw_leaf leaves[] = {
        {.path = "a",
         .layout = {.ndim = 2, .itemsize = 4, .shape = shape_2x3, .dtype = "<f4"},
         .hash = 1,
         .flags = CW_LEAF_HASHED},
        {.path = "b",
         .layout = {.ndim = 1, .itemsize = 8, .shape = shape_4, .dtype = "<f8"},
         .offset_bytes = 256,
         .hash = 2,
         .flags = CW_LEAF_HASHED},
    };
    uint8_t *bytes;
    OK(cw_index_write(&part, 1, leaves, 2, "meta", 4, &bytes, size_bytes));
    return bytes;
}

/* Each byte of an index is looked at: another value of any of them is refused, or is metadata, the
 * part's slab, block, generation and place, or leaves another that says what it says. */
static void every_byte_of_an_index_is_checked(void **state) {
    (void)state;
    struct cw_index index;
    uint64_t size_bytes;
    uint8_t *bytes = bytes_of_index(&size_bytes);
    OK(cw_index_read(bytes, size_bytes, &index));
    cw_index_deinit(&index);
    const uint64_t part_at = sizeof(struct cw_index_head), meta_at = size_bytes - 4;
    for (uint64_t at = 0; at < meta_at; at++) {
        bool of_part = at >= part_at && at < part_at + 24; /* slab, block, generation, offset */
        for (int bit = 0; bit < 8 && !of_part; bit++) {
            bytes[at] ^= (uint8_t)(1 << bit);
            if (cw_index_read(bytes, size_bytes, &index) != -EPROTO)
                fail_msg("bit %d of byte %llu may be another", bit, (unsigned long long)at);
            bytes[at] ^= (uint8_t)(1 << bit);
        }
    }
    for (uint64_t less = 0; less < size_bytes; less++)
        assert_int_equal(cw_index_read(bytes, less, &index), -EPROTO);
    free(bytes);
}

/* With hashes that are right: the rules themselves. */
static int read_changed(uint8_t *bytes, uint64_t size_bytes) {
    struct cw_index index;
    struct cw_index_head *head = (void *)bytes;
    if (head->parts == 1 && head->leaves == 2 && head->numbers == 3) {
        head->layout_hash = cw_index_layout_hash(head);
        head->content_hash = cw_index_content_hash(head);
    }
    int code = cw_index_read(bytes, size_bytes, &index);
    if (code == 0)
        cw_index_deinit(&index);
    return code;
}

static void hostile_indexes_are_refused(void **state) {
    (void)state;
    uint64_t size_bytes;
    uint8_t *bytes = bytes_of_index(&size_bytes);
    struct cw_index_head *head = (void *)bytes;
    struct cw_index_part *part = (void *)(head + 1);
    struct cw_index_leaf *leaf = (void *)(part + 1);
    int64_t *numbers = (void *)(leaf + 2);
#define REFUSED(place, value)                                                                      \
    do {                                                                                           \
        __typeof__(place) was_ = place;                                                            \
        place = value;                                                                             \
        assert_int_equal(read_changed(bytes, size_bytes), -EPROTO);                                \
        place = was_;                                                                              \
        assert_int_equal(read_changed(bytes, size_bytes), 0);                                      \
    } while (0)
    REFUSED(leaf[1].offset_bytes, 8);              /* overlap */
    REFUSED(leaf[1].offset_bytes, UINT64_MAX - 8); /* overflow */
    REFUSED(leaf[1].offset_bytes, 1000);           /* beyond the part */
    REFUSED(leaf[1].part, 1);                      /* no such part */
    REFUSED(leaf[1].path_at, leaf[0].path_at);     /* a path twice, and a gap */
    REFUSED(leaf[1].shape_at, UINT32_MAX);
    REFUSED(leaf[1].ndim, 255);
    REFUSED(leaf[1].itemsize, 4);
    REFUSED(leaf[1].alias, 2); /* of itself */
    REFUSED(leaf[1].alias, 1); /* of what lies elsewhere */
    REFUSED(leaf[1].strided, 1);
    REFUSED(leaf[0].size_bytes, 23);
    REFUSED(numbers[0], -2);            /* a negative shape */
    REFUSED(numbers[0], INT64_MAX / 2); /* one that overflows */
    REFUSED(head->leaves, UINT32_MAX);
    REFUSED(head->leaves, 1);
    REFUSED(head->parts, UINT32_MAX);
    REFUSED(head->numbers, UINT32_MAX);
    REFUSED(head->meta_bytes, UINT64_MAX);
    REFUSED(head->total_bytes, 1);
    REFUSED(part->slab, 0);
    REFUSED(part->offset_bytes, UINT64_MAX);
    REFUSED(part->size_bytes, 255);
    REFUSED(part->device_kind, CW_DEVICE_CUDA); /* and no UUID */
#undef REFUSED
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_put_comes_back, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(
            what_is_not_sealed_is_read_only_to_readers_and_goes_into_no_mount, folder_make,
            folder_remove),
        cmocka_unit_test_setup_teardown(of_a_part_only_what_its_leaves_need_is_shown, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(a_tree_and_an_array_are_not_taken_for_each_other,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(memory_comes_back_with_the_last_holder_of_the_index,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(versions_rise_and_the_one_that_was_said_is_replaced,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_handle_opens_the_tree_elsewhere, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(what_cannot_be_a_tree_is_refused_and_leaves_nothing,
                                        folder_make, folder_remove),
        cmocka_unit_test(every_byte_of_an_index_is_checked),
        cmocka_unit_test(hostile_indexes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
