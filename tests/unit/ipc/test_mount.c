/*
 * Trees at fixed addresses by the C interface: one version follows another, goes and comes back;
 * what does not fit is refused, and nothing has changed then.
 */
#include <errno.h>

#include "ipc/array/array.h"
#include "ipc/tree/tree.h"
#include "tests/unit/ipc/client_support.h"

#define BYTES (1 << 17)

struct mounted {
    cw_client *client;
    cw_tree *tree;
    cw_mount *mount;
    cw_array *array;
    const uint8_t *seen;
};

/* A version of "m": one leaf of so many bytes, all of that value. */
static cw_tree *put(cw_client *client, int64_t bytes, int value) {
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &bytes, .dtype = "|u1"};
    cw_array *array;
    cw_tree *tree;
    OK(cw_array_new(client, "cpu", &layout, CW_APART, &array));
    memset(cw_array_data(array), value, (size_t)bytes);
    const cw_leaf leaf = {.path = "w", .layout = layout, .array = array};
    OK(cw_tree_put(client, "m", &leaf, 1, NULL, 0, CW_REPLACE, CW_ANY_VERSION, &tree));
    cw_array_close(array);
    return tree;
}

static void open_mount(struct mounted *m) {
    m->client = client_open();
    m->tree = put(m->client, BYTES, 1);
    OK(cw_mount_open(m->tree, m->client, &m->mount));
    OK(cw_mount_part(m->mount, 0, &m->array));
    m->seen = cw_array_data(m->array);
}

static void close_mount(struct mounted *m) {
    cw_array_close(m->array);
    cw_mount_close(m->mount);
    cw_tree_close(m->tree);
    cw_client_unref(m->client);
}

static void assert_holds(const struct mounted *m, int value) {
    uint8_t copy[2];
    assert_ptr_equal(cw_array_data(m->array), m->seen);
    assert_int_equal(m->seen[0], value);
    assert_int_equal(m->seen[BYTES - 1], value);
    OK(cw_array_read(m->array, BYTES - 2, copy, 2));
    assert_int_equal(copy[1], value);
}

static void assert_told(int code, int wanted, const char *words) {
    assert_int_equal(code, wanted);
    assert_non_null(strstr(cw_error(), words));
}

static void a_version_follows_another_at_its_addresses(void **state) {
    (void)state;
    struct mounted m;
    cw_tree_info info;
    open_mount(&m);
    assert_holds(&m, 1);
    cw_tree *second = put(m.client, BYTES, 2);
    OK(cw_mount_swap(m.mount, second, NULL));
    assert_holds(&m, 2);
    cw_tree_look_at(second, &info);
    assert_int_equal(cw_mount_version(m.mount), info.version);
    OK(cw_mount_swap(m.mount, m.tree, NULL)); /* and back */
    assert_holds(&m, 1);
    OK(cw_mount_swap(m.mount, m.tree, NULL)); /* the same is no change */
    assert_holds(&m, 1);
    cw_tree_close(second);
    close_mount(&m);
}

static void what_does_not_fit_is_refused_and_the_old_one_stays(void **state) {
    (void)state;
    struct mounted m;
    open_mount(&m);
    uint64_t version = cw_mount_version(m.mount);
    cw_tree *other = put(m.client, 2 * BYTES, 2);
    assert_told(cw_mount_swap(m.mount, other, NULL), -EBADE, "another layout than version");
    assert_holds(&m, 1);
    assert_int_equal(cw_mount_version(m.mount), version);
    assert_int_equal(cw_mount_state(m.mount), CW_MOUNT_MAPPED);
    cw_tree_close(other);
    close_mount(&m);
}

static void while_nothing_is_mapped_calls_are_refused(void **state) {
    (void)state;
    struct mounted m;
    uint8_t byte;
    cw_handle handle;
    open_mount(&m);
    OK(cw_mount_unmap(m.mount, NULL));
    OK(cw_mount_unmap(m.mount, NULL));
    assert_int_equal(cw_mount_state(m.mount), CW_MOUNT_UNMAPPED);
    assert_told(cw_array_read(m.array, 0, &byte, 1), -EINVAL, "is unmapped: map it first");
    assert_told(cw_array_export(m.array, 1, &handle), -EINVAL, "is unmapped: map it first");
    assert_told(cw_array_put(m.array, "x", 0, NULL, 0), -EINVAL, "is unmapped: map it first");
    assert_told(cw_mount_park(m.mount, NULL), -EINVAL, "map it, then park it");
    assert_told(cw_mount_unpark(m.mount, NULL), -EINVAL, "not parked: map it");
    OK(cw_mount_map(m.mount));
    OK(cw_mount_map(m.mount));
    assert_holds(&m, 1);
    close_mount(&m);
}

static void who_uses_it_keeps_it_as_it_is(void **state) {
    (void)state;
    struct mounted m;
    open_mount(&m);
    cw_tree *second = put(m.client, BYTES, 2);
    OK(cw_array_pin(m.array));
    assert_told(cw_mount_swap(m.mount, second, NULL), -EBUSY, "are in use (1 times)");
    assert_told(cw_mount_unmap(m.mount, NULL), -EBUSY, "are in use (1 times)");
    assert_holds(&m, 1);
    cw_array_unpin(m.array);
    cw_array_unpin(m.array); /* once more than it was pinned */
    OK(cw_mount_swap(m.mount, second, NULL));
    assert_holds(&m, 2);
    cw_tree_close(second);
    close_mount(&m);
}

static void an_array_outlives_its_mount_and_the_tree(void **state) {
    (void)state;
    struct mounted m;
    cw_array *again;
    open_mount(&m);
    OK(cw_mount_part(m.mount, 0, &again));
    cw_mount_close(m.mount);
    m.mount = NULL;
    cw_tree_close(m.tree);
    m.tree = NULL;
    OK(cw_remove(m.client, "m"));
    assert_holds(&m, 1);
    assert_ptr_equal(cw_array_data(again), m.seen);
    cw_array_close(m.array);
    assert_int_equal(((const uint8_t *)cw_array_data(again))[BYTES - 1], 1);
    cw_array_close(again);
    cw_client_unref(m.client);
}

static void a_parked_host_part_comes_back(void **state) {
    (void)state;
    struct mounted m;
    open_mount(&m);
    OK(cw_mount_park(m.mount, NULL));
    OK(cw_mount_park(m.mount, NULL));
    assert_int_equal(cw_mount_state(m.mount), CW_MOUNT_PARKED);
    assert_told(cw_mount_map(m.mount), -EINVAL, "is parked: unpark it");
    assert_told(cw_mount_swap(m.mount, m.tree, NULL), -EINVAL, "is parked: unpark it");
    OK(cw_mount_unpark(m.mount, NULL));
    assert_holds(&m, 1);
    OK(cw_mount_park(m.mount, NULL));
    OK(cw_mount_unpark(m.mount, m.tree));
    assert_holds(&m, 1);
    close_mount(&m);
}

static void a_description_holds_nothing(void **state) {
    (void)state;
    struct mounted m;
    cw_tree *told;
    cw_handle handle;
    cw_tree_info info;
    uint64_t version;
    open_mount(&m);
    OK(cw_tree_describe(m.tree, &told));
    cw_tree_look_at(told, &info);
    assert_int_equal(info.leaves, 1);
    assert_int_equal(info.version, cw_mount_version(m.mount));
    assert_told(cw_tree_export(told, 1, &handle), -ESTALE, "belongs to this process alone");
    assert_told(cw_tree_name(told, m.client, "n", 0, 0, &version), -ESTALE, "alone by now");
    cw_tree_close(told);
    close_mount(&m);
}

static void memory_of_its_own_begins_at_its_first_byte(void **state) {
    (void)state;
    cw_client *client = client_open();
    const int64_t sizes[] = {1 << 16, (1 << 16) + 1, 3 << 20};
    for (unsigned i = 0; i < 3; i++) {
        const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &sizes[i], .dtype = "|u1"};
        cw_array *one, *two;
        OK(cw_array_new(client, "cpu", &layout, CW_APART, &one));
        OK(cw_array_new(client, "cpu", &layout, CW_APART, &two));
        uint32_t id = one->slab->id;
        assert_int_not_equal(id, two->slab->id);
        assert_int_equal(one->slab->size_bytes, two->slab->size_bytes);
        assert_true(one->slab->size_bytes - (uint64_t)sizes[i] < 4096);
        assert_int_equal(one->slab->locals[one->block].extent->offset_bytes, 0);
        assert_int_equal(two->slab->locals[two->block].extent->offset_bytes, 0);
        cw_array_close(one);
        OK(cw_array_new(client, "cpu", &layout, CW_APART, &one));
        assert_int_equal(one->slab->id, id); /* what is empty is taken again */
        cw_array_close(one);
        cw_array_close(two);
    }
    cw_client_unref(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_version_follows_another_at_its_addresses, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused_and_the_old_one_stays,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(while_nothing_is_mapped_calls_are_refused, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(who_uses_it_keeps_it_as_it_is, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(an_array_outlives_its_mount_and_the_tree, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(a_parked_host_part_comes_back, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_description_holds_nothing, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(memory_of_its_own_begins_at_its_first_byte, folder_make,
                                        folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
