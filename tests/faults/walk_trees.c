/*
 * The part of the walk with trees: see walk.c.
 */
#include "tests/faults/walk.h"

#include <errno.h>
#include <string.h>

#define BYTES  4096
#define LEAVES 20

static const int64_t leaf_shape = BYTES / LEAVES;

/* Puts a tree of one part, all of whose bytes are that; again where the call failed. */
static void put(cw_client *client, int filling, uint64_t if_version, cw_tree **tree) {
    static char paths[LEAVES][8];
    cw_leaf leaves[LEAVES];
    cw_array *part = walk_array(client, BYTES, filling, 0);
    for (int i = 0; i < LEAVES; i++) {
        paths[i][0] = (char)('a' + i);
        leaves[i] =
            (cw_leaf){.path = paths[i],
                      .layout = {.ndim = 1, .itemsize = 1, .shape = &leaf_shape, .dtype = "|u1"},
                      .array = part,
                      .offset_bytes = (uint64_t)(i * leaf_shape)};
    }
    STEP(cw_tree_put(client, "faults/tree", leaves, LEAVES, "{}", 2, CW_REPLACE, if_version, tree));
    cw_array_close(part);
}

static void check(cw_client *client, cw_tree *tree, int filling) {
    cw_tree_info info;
    cw_leaf leaf;
    uint32_t number;
    cw_array *part;
    cw_tree_look_at(tree, &info);
    MUST(info.leaves == LEAVES && info.parts == 1 && info.meta_bytes == 2);
    MUST(cw_tree_find(tree, "c", &number) == 0 && number == 2);
    MUST(cw_tree_leaf(tree, number, &leaf) == 0 && leaf.size_bytes == (uint64_t)leaf_shape);
    STEP(cw_tree_part(tree, client, leaf.part, &part));
    MUST(*((uint8_t *)cw_array_data(part) + leaf.offset_bytes) == filling);
    cw_array_close(part);
}

void walk_trees(cw_client *client) {
    cw_tree *first, *second, *got;
    cw_tree_info info;
    cw_handle handle;
    put(client, 5, CW_ANY_VERSION, &first);
    cw_tree_look_at(first, &info);
    put(client, 6, CW_ANY_VERSION, &second);
    STEP(cw_tree_get(client, "faults/tree", 0, &got));
    check(client, got, 6);
    cw_tree_close(got);
    STEP(cw_tree_get(client, "faults/tree", info.version, &got));
    check(client, got, 5);
    STEP(cw_tree_export(got, 1, &handle));
    cw_tree_close(got);
    STEP(cw_tree_open(client, &handle, info.version, &got));
    check(client, got, 5);
    cw_tree_close(got);
    STEP(cw_wait_after(client, "faults/tree", info.version, -1));
    cw_tree_close(first);
    cw_tree_close(second);
    int code = cw_remove(client, "faults/tree");
    if (code) {
        walk_told(__LINE__, "cw_remove", code);
        MUST(cw_remove(client, "faults/tree") == 0 || code == -EINPROGRESS);
    }
}
