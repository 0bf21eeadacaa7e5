/*
 * Fuzzes the index of a tree, which one process writes and every other reads: whatever the bytes
 * say, they are refused, or what they describe keeps the invariants of ipc/tree/index.h and gives
 * the same bytes when it is written again. The hashes are made right first, since no fuzzer finds
 * them.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/tree/index.h"
#include "shm/base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_leaves(const struct cw_index *index, cw_leaf *leaves) {
    for (uint32_t i = 0; i < index->head->leaves; i++) {
        const struct cw_index_leaf *leaf = &index->leaves[i];
        uint32_t number;
        cw_index_leaf(index, i, &leaves[i]);
        CW_ASSERT(strlen(leaves[i].path) == leaf->path_bytes && leaf->path_bytes > 0);
        CW_ASSERT(cw_index_find(index, leaves[i].path, &number) == 0 && number == i);
        CW_ASSERT(strlen(leaves[i].layout.dtype) == leaf->dtype_bytes);
        if (leaf->size_bytes == 0)
            continue;
        CW_ASSERT(leaf->part < index->head->parts);
        CW_ASSERT(leaf->size_bytes <= index->parts[leaf->part].size_bytes);
        CW_ASSERT(leaf->offset_bytes <= index->parts[leaf->part].size_bytes - leaf->size_bytes);
        for (uint32_t k = 0; k < i && i < 64; k++) {
            const struct cw_index_leaf *other = &index->leaves[k];
            bool apart = other->part != leaf->part || other->size_bytes == 0 ||
                         other->offset_bytes >= leaf->offset_bytes + leaf->size_bytes ||
                         leaf->offset_bytes >= other->offset_bytes + other->size_bytes;
            CW_ASSERT(apart || leaf->alias || other->alias);
        }
    }
}

/* The same bytes again. */
static void write_again(const struct cw_index *index, const cw_leaf *leaves) {
    uint8_t *again;
    uint64_t size_bytes;
    int code = cw_index_write(index->parts, index->head->parts, leaves, index->head->leaves,
                              index->meta, index->head->meta_bytes, &again, &size_bytes);
    CW_ASSERT(code == 0 && size_bytes == index->head->size_bytes);
    CW_ASSERT(memcmp(again, index->bytes, size_bytes) == 0);
    free(again);
}

/* Sections that fit, and hashes that are right, if the numbers in the head allow it. */
static void mend(uint8_t *bytes, size_t size) {
    struct cw_index_head *head = (void *)bytes;
    if (size < sizeof *head || head->parts > CW_PARTS_MAX || head->leaves > CW_LEAVES_MAX ||
        head->meta_bytes > CW_TREE_META_MAX)
        return;
    uint64_t needed = sizeof *head + (uint64_t)head->parts * sizeof(struct cw_index_part) +
                      (uint64_t)head->leaves * sizeof(struct cw_index_leaf) +
                      (uint64_t)head->numbers * sizeof(int64_t) + head->text_bytes +
                      head->meta_bytes;
    if (needed != size)
        return;
    head->magic = CW_INDEX_MAGIC;
    head->version = CW_INDEX_VERSION;
    head->size_bytes = size;
    head->layout_hash = cw_index_layout_hash(head);
    head->content_hash = cw_index_content_hash(head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cw_index index;
    uint8_t *exact = malloc(size ? size : 1); /* so that a byte beyond is noticed */
    CW_ASSERT(exact);
    memcpy(exact, data, size);
    mend(exact, size);
    if (cw_index_read(exact, size, &index) == 0) {
        cw_leaf *leaves = malloc((index.head->leaves + 1) * sizeof *leaves);
        CW_ASSERT(leaves);
        check_leaves(&index, leaves);
        write_again(&index, leaves);
        free(leaves);
        cw_index_deinit(&index);
    }
    free(exact);
    return 0;
}
