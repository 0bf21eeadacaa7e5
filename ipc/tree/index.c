/*
 * The index of a tree: see index.h. How one is read and checked.
 *
 * The bytes come from another process, which may be broken or hostile: all of them are checked, in
 * time that grows with their number (and its logarithm), and what was checked is a copy that nobody
 * else can write. Pure functions, from any thread; nothing to be lost with a process.
 */
#include "ipc/tree/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/base/layout.h"
#include "ipc/wire.h"
#include "shm/base/error.h"

#define PROBES_SPARE                                                                               \
    1024u /* of the table: what is beyond is a set of paths that was made for that */
#define PROBES_EACH 64u

/* ---- where the sections lie ---- */

static const struct cw_index_part *parts_of(const struct cw_index_head *head) {
    return (const void *)(head + 1);
}

static const struct cw_index_leaf *leaves_of(const struct cw_index_head *head) {
    return (const void *)(parts_of(head) + head->parts);
}

static const int64_t *numbers_of(const struct cw_index_head *head) {
    return (const void *)(leaves_of(head) + head->leaves);
}

static const char *text_of(const struct cw_index_head *head) {
    return (const char *)(numbers_of(head) + head->numbers);
}

/* ---- hashes ---- */

uint64_t cw_index_layout_hash(const struct cw_index_head *head) {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < head->parts; i++) {
        struct cw_index_part part = {.size_bytes = parts_of(head)[i].size_bytes,
                                     .device_kind = parts_of(head)[i].device_kind};
        memcpy(part.device_uuid, parts_of(head)[i].device_uuid, sizeof part.device_uuid);
        XXH3_64bits_update(&state, &part, sizeof part);
    }
    for (uint32_t i = 0; i < head->leaves; i++) {
        struct cw_index_leaf leaf = leaves_of(head)[i];
        leaf.hash = 0;
        leaf.flags &= (uint8_t)~CW_LEAF_HASHED;
        XXH3_64bits_update(&state, &leaf, sizeof leaf);
    }
    XXH3_64bits_update(&state, numbers_of(head), head->numbers * sizeof(int64_t));
    XXH3_64bits_update(&state, text_of(head), head->text_bytes);
    return XXH3_64bits_digest(&state);
}

uint64_t cw_index_content_hash(const struct cw_index_head *head) {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < head->leaves; i++) {
        if (!(leaves_of(head)[i].flags & CW_LEAF_HASHED))
            return 0;
        XXH3_64bits_update(&state, &leaves_of(head)[i].hash, sizeof(uint64_t));
    }
    return XXH3_64bits_digest(&state);
}

/* ---- the check ---- */

struct reading { /* how far the sections were read; what does not continue there is refused */
    const struct cw_index *index;
    uint32_t text, numbers, number; /* number: of the leaf */
    uint64_t total_bytes;
    const char *dtype; /* of the leaf before, and its size */
    uint32_t dtype_at, dtype_bytes, itemsize;
};

#define BAD(...) cw_fail(-EPROTO, "the index of a tree is damaged: " __VA_ARGS__)

static int check_head(const struct cw_index_head *head, uint64_t size_bytes) {
    if (head->magic != CW_INDEX_MAGIC)
        return BAD("it does not begin as one");
    if (head->version != CW_INDEX_VERSION)
        return cw_fail(-EPROTO, "the index of a tree has version %u, this library reads %u",
                       head->version, CW_INDEX_VERSION);
    static const uint64_t none[sizeof head->reserved / sizeof *head->reserved];
    if (head->reserved0 || memcmp(head->reserved, none, sizeof none) != 0)
        return BAD("its head has reserved words that are not 0");
    if (head->parts > CW_PARTS_MAX || head->leaves > CW_LEAVES_MAX ||
        head->meta_bytes > CW_TREE_META_MAX)
        return BAD("%u parts, %u leaves and %llu bytes of metadata cannot be", head->parts,
                   head->leaves, (unsigned long long)head->meta_bytes);
    uint64_t needed = sizeof *head + (uint64_t)head->parts * sizeof(struct cw_index_part) +
                      (uint64_t)head->leaves * sizeof(struct cw_index_leaf) +
                      (uint64_t)head->numbers * sizeof(int64_t) + head->text_bytes +
                      head->meta_bytes;
    if (head->size_bytes != size_bytes || needed != size_bytes)
        return BAD("it has %llu bytes, says %llu, and its sections have %llu",
                   (unsigned long long)size_bytes, (unsigned long long)head->size_bytes,
                   (unsigned long long)needed);
    return 0;
}

static int compare_parts(const void *one, const void *other) {
    const struct cw_index_part *left = *(const struct cw_index_part *const *)one;
    const struct cw_index_part *right = *(const struct cw_index_part *const *)other;
    if (left->slab != right->slab)
        return left->slab < right->slab ? -1 : 1;
    return left->block < right->block ? -1 : left->block > right->block;
}

static int check_parts(const struct cw_index *index) {
    static const uint8_t none[16];
    const uint32_t count = index->head->parts;
    for (uint32_t i = 0; i < count; i++) {
        const struct cw_index_part *part = &index->parts[i];
        uint64_t end;
        bool host = part->device_kind == CW_DEVICE_HOST;
        if ((!host && part->device_kind != CW_DEVICE_CUDA) || part->reserved || part->reserved0 ||
            part->slab == 0 || (memcmp(part->device_uuid, none, 16) == 0) != host ||
            __builtin_add_overflow(part->offset_bytes, part->size_bytes, &end) ||
            end > INT64_MAX / 2)
            return BAD("part %u lies in no memory that can be", i);
    }
    if (count < 2)
        return 0;
    const struct cw_index_part **sorted = malloc(count * sizeof(void *));
    if (!sorted)
        return cw_fail(-EDQUOT, "no memory to look at the %u parts of a tree", count);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = &index->parts[i];
    qsort(sorted, count, sizeof(void *), compare_parts);
    int code = 0;
    for (uint32_t i = 1; i < count && code == 0; i++)
        if (compare_parts(&sorted[i - 1], &sorted[i]) == 0)
            code = BAD("two parts lie in block %u of slab %u", sorted[i]->block, sorted[i]->slab);
    free(sorted);
    return code;
}

/* The next text of the index; NULL: it is not there, or not as long as is said. */
static const char *text_next(struct reading *r, uint32_t at, uint32_t bytes) {
    const struct cw_index_head *head = r->index->head;
    if (at != r->text || bytes >= head->text_bytes - r->text)
        return NULL;
    const char *text = r->index->text + at;
    if (strnlen(text, bytes + 1) != bytes)
        return NULL;
    r->text += bytes + 1;
    return text;
}

/* What is wrong with a leaf's path or dtype was just said. */
static int bad_leaf(const struct reading *r) {
    char why[CW_DETAIL_MAX];
    snprintf(why, sizeof why, "%s", cw_detail());
    return BAD("leaf %u: %.300s", r->number, why);
}

static int check_path(struct reading *r, const struct cw_index_leaf *leaf) {
    const char *path = text_next(r, leaf->path_at, leaf->path_bytes);
    if (!path || leaf->path_bytes > CW_PATH_MAX)
        return BAD("leaf %u has no path", r->number);
    return cw_path_check(path) ? bad_leaf(r) : 0;
}

static int check_dtype(struct reading *r, const struct cw_index_leaf *leaf) {
    if (r->dtype && leaf->dtype_at == r->dtype_at) {
        if (leaf->dtype_bytes != r->dtype_bytes || leaf->itemsize != r->itemsize)
            return BAD("leaf %u has a dtype of another length than it has", r->number);
        return 0;
    }
    const char *dtype = text_next(r, leaf->dtype_at, leaf->dtype_bytes);
    uint32_t itemsize;
    if (!dtype || leaf->dtype_bytes > CW_DTYPE_MAX)
        return BAD("leaf %u has no dtype", r->number);
    if (r->dtype && strcmp(dtype, r->dtype) == 0)
        return BAD("leaf %u says again what dtype it has", r->number);
    for (const char *at = dtype; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return BAD("the dtype of leaf %u holds a control character", r->number);
    if (cw_dtype_size(dtype, &itemsize) != 0)
        return bad_leaf(r);
    if (itemsize != leaf->itemsize)
        return BAD("leaf %u has elements of %u bytes and says %u", r->number, itemsize,
                   leaf->itemsize);
    r->dtype = dtype;
    r->dtype_at = leaf->dtype_at;
    r->dtype_bytes = leaf->dtype_bytes;
    r->itemsize = itemsize;
    return 0;
}

static int check_shape(struct reading *r, const struct cw_index_leaf *leaf) {
    const struct cw_index *index = r->index;
    uint64_t count = (uint64_t)leaf->ndim << (leaf->strided == 1);
    if (leaf->ndim > CW_NDIM_MAX || leaf->strided > 1 || leaf->shape_at != r->numbers ||
        count > index->head->numbers - r->numbers)
        return BAD("leaf %u has no shape", r->number);
    r->numbers += (uint32_t)count;
    struct cw_shape found;
    const int64_t *shape = index->numbers + leaf->shape_at;
    int64_t *strides = found.strides, stride = leaf->itemsize;
    found.ndim = leaf->ndim;
    found.itemsize = leaf->itemsize;
    for (uint32_t i = leaf->ndim; i-- > 0;) {
        strides[i] = stride;
        if (shape[i] < 0 || __builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride))
            return BAD("leaf %u has a shape that cannot be", r->number);
    }
    if (leaf->strided) {
        const int64_t *said = shape + leaf->ndim;
        if (memcmp(said, strides, leaf->ndim * sizeof *said) == 0)
            return BAD("leaf %u says strides that are those of C order", r->number);
        memcpy(strides, said, leaf->ndim * sizeof *said);
    }
    memcpy(found.shape, shape, leaf->ndim * sizeof *shape);
    if (cw_shape_measure(&found) != 0)
        return BAD("leaf %u has a shape that cannot be", r->number);
    if (found.span_bytes != leaf->size_bytes || (leaf->strided && found.span_bytes == 0))
        return BAD("leaf %u spans %llu bytes and says %llu", r->number,
                   (unsigned long long)found.span_bytes, (unsigned long long)leaf->size_bytes);
    return 0;
}

static int check_place(struct reading *r, const struct cw_index_leaf *leaf) {
    const struct cw_index *index = r->index;
    if (leaf->kind >= CW_LEAF_KINDS || leaf->reserved ||
        leaf->flags & ~(uint32_t)(CW_LEAF_TRANSIENT | CW_LEAF_HASHED) ||
        (!(leaf->flags & CW_LEAF_HASHED) && leaf->hash))
        return BAD("leaf %u has flags that version %u does not know", r->number, CW_INDEX_VERSION);
    if (leaf->size_bytes == 0 && (leaf->part || leaf->offset_bytes))
        return BAD("leaf %u has no bytes, and lies somewhere", r->number);
    if (leaf->size_bytes &&
        (leaf->part >= index->head->parts ||
         leaf->offset_bytes > index->parts[leaf->part].size_bytes ||
         leaf->size_bytes > index->parts[leaf->part].size_bytes - leaf->offset_bytes))
        return BAD("leaf %u does not lie within its part", r->number);
    if (leaf->alias) {
        const struct cw_index_leaf *of = &index->leaves[leaf->alias - 1];
        if (leaf->alias > r->number || of->alias || of->part != leaf->part ||
            of->offset_bytes != leaf->offset_bytes || of->size_bytes != leaf->size_bytes ||
            of->hash != leaf->hash || (of->flags ^ leaf->flags) & CW_LEAF_HASHED)
            return BAD("leaf %u is an alias of what it is not", r->number);
    } else if (__builtin_add_overflow(r->total_bytes, leaf->size_bytes, &r->total_bytes)) {
        return BAD("its leaves have more bytes than can be");
    }
    return 0;
}

static int compare_places(const void *one, const void *other) {
    const struct cw_index_leaf *left = *(const struct cw_index_leaf *const *)one;
    const struct cw_index_leaf *right = *(const struct cw_index_leaf *const *)other;
    if (left->part != right->part)
        return left->part < right->part ? -1 : 1;
    return left->offset_bytes < right->offset_bytes ? -1 : left->offset_bytes > right->offset_bytes;
}

static bool follows(const struct cw_index_leaf *before, const struct cw_index_leaf *leaf) {
    return !before || leaf->part > before->part ||
           (leaf->part == before->part &&
            leaf->offset_bytes >= before->offset_bytes + before->size_bytes);
}

/* X2. Leaves stand in the order of their places as a rule; where they do not they are sorted. */
static int check_overlaps(const struct cw_index *index) {
    const uint32_t count = index->head->leaves;
    const struct cw_index_leaf *before = NULL, **sorted = NULL;
    uint32_t own = 0, i;
    bool in_order = true;
    for (i = 0; i < count && in_order; i++) {
        const struct cw_index_leaf *leaf = &index->leaves[i];
        if (leaf->alias || !leaf->size_bytes)
            continue;
        in_order = follows(before, leaf);
        before = leaf;
    }
    if (in_order)
        return 0;
    sorted = malloc(count * sizeof(void *));
    if (!sorted)
        return cw_fail(-EDQUOT, "no memory to look at the %u leaves of a tree", count);
    for (i = 0; i < count; i++)
        if (!index->leaves[i].alias && index->leaves[i].size_bytes)
            sorted[own++] = &index->leaves[i];
    qsort(sorted, own, sizeof(void *), compare_places);
    for (i = 1; i < own && follows(sorted[i - 1], sorted[i]); i++)
        ;
    int code = i < own ? BAD("leaves %u and %u overlap", (uint32_t)(sorted[i - 1] - index->leaves),
                             (uint32_t)(sorted[i] - index->leaves))
                       : 0;
    free(sorted);
    return code;
}

static uint32_t slot_of(const struct cw_index *index, const char *path, size_t path_bytes) {
    return (uint32_t)XXH3_64bits(path, path_bytes) & index->mask;
}

static bool has_path(const struct cw_index *index, uint32_t number, const char *path,
                     size_t path_bytes) {
    const struct cw_index_leaf *leaf = &index->leaves[number];
    return leaf->path_bytes == path_bytes &&
           memcmp(index->text + leaf->path_at, path, path_bytes) == 0;
}

/* The table, and X3: no path twice. */
static int build_table(struct cw_index *index) {
    const uint32_t count = index->head->leaves;
    uint64_t probes = 0, most = (uint64_t)count * PROBES_EACH + PROBES_SPARE;
    uint32_t slots = 8;
    while (slots < 2 * count)
        slots *= 2;
    index->mask = slots - 1;
    index->slots = calloc(slots, sizeof *index->slots);
    if (!index->slots)
        return cw_fail(-EDQUOT, "no memory for a table of the %u leaves of a tree", count);
    for (uint32_t i = 0; i < count; i++) {
        const struct cw_index_leaf *leaf = &index->leaves[i];
        const char *path = index->text + leaf->path_at;
        uint32_t slot = slot_of(index, path, leaf->path_bytes);
        for (; index->slots[slot]; slot = (slot + 1) & index->mask) {
            if (has_path(index, index->slots[slot] - 1, path, leaf->path_bytes))
                return BAD("two leaves have the path \"%.300s\"", path);
            if (++probes > most)
                return BAD("its paths have hashes that were made alike");
        }
        index->slots[slot] = i + 1;
    }
    return 0;
}

static int check_leaves(struct cw_index *index) {
    const struct cw_index_head *head = index->head;
    struct reading r = {.index = index};
    int code = 0;
    for (; r.number < head->leaves && code == 0; r.number++) {
        const struct cw_index_leaf *leaf = &index->leaves[r.number];
        code = check_path(&r, leaf);
        if (code == 0)
            code = check_dtype(&r, leaf);
        if (code == 0)
            code = check_shape(&r, leaf);
        if (code == 0)
            code = check_place(&r, leaf);
    }
    if (code)
        return code;
    if (r.text != head->text_bytes || r.numbers != head->numbers)
        return BAD("it has text or numbers that are no leaf's");
    if (r.total_bytes != head->total_bytes)
        return BAD("its leaves have %llu bytes and it says %llu", (unsigned long long)r.total_bytes,
                   (unsigned long long)head->total_bytes);
    if (head->layout_hash != cw_index_layout_hash(head) ||
        head->content_hash != cw_index_content_hash(head))
        return BAD("its hashes are not those of its leaves");
    return 0;
}

static int check(struct cw_index *index, uint64_t size_bytes) {
    const struct cw_index_head *head = (const void *)index->bytes;
    int code = check_head(head, size_bytes);
    if (code)
        return code;
    index->head = head;
    index->parts = parts_of(head);
    index->leaves = leaves_of(head);
    index->numbers = numbers_of(head);
    index->text = text_of(head);
    index->meta = (const uint8_t *)index->text + head->text_bytes;
    code = check_parts(index);
    if (code == 0)
        code = check_leaves(index);
    if (code == 0)
        code = check_overlaps(index);
    return code ? code : build_table(index);
}

int cw_index_read(const void *bytes, uint64_t size_bytes, struct cw_index *out) {
    if (size_bytes < sizeof(struct cw_index_head) || size_bytes > CW_INDEX_BYTES_MAX)
        return BAD("an index of %llu bytes cannot be (at most %llu)",
                   (unsigned long long)size_bytes, CW_INDEX_BYTES_MAX);
    struct cw_index index = {.bytes = malloc(size_bytes)};
    if (!index.bytes)
        return cw_fail(-EDQUOT, "no memory for an index of %llu bytes",
                       (unsigned long long)size_bytes);
    memcpy(index.bytes, bytes, size_bytes);
    int code = check(&index, size_bytes);
    if (code)
        cw_index_deinit(&index);
    else
        *out = index;
    return code;
}

void cw_index_deinit(struct cw_index *index) {
    free(index->bytes);
    free(index->slots);
    *index = (struct cw_index){.bytes = NULL};
}

int cw_index_find(const struct cw_index *index, const char *path, uint32_t *number) {
    size_t path_bytes = strlen(path);
    uint32_t slot = slot_of(index, path, path_bytes);
    for (; index->slots[slot]; slot = (slot + 1) & index->mask) {
        if (has_path(index, index->slots[slot] - 1, path, path_bytes)) {
            *number = index->slots[slot] - 1;
            return 0;
        }
    }
    return -ENOENT;
}

void cw_index_spans(const struct cw_index *index, struct cw_index_span *spans) {
    memset(spans, 0, index->head->parts * sizeof *spans);
    for (uint32_t i = 0; i < index->head->leaves; i++) {
        const struct cw_index_leaf *leaf = &index->leaves[i];
        struct cw_index_span *span = &spans[leaf->part];
        uint64_t begin = leaf->offset_bytes / CW_LEAF_ALIGN * CW_LEAF_ALIGN;
        uint64_t end = leaf->offset_bytes + leaf->size_bytes; /* X1 */
        if (leaf->size_bytes == 0)
            continue;
        if (span->size_bytes) {
            uint64_t last = span->offset_bytes + span->size_bytes;
            begin = begin < span->offset_bytes ? begin : span->offset_bytes;
            end = end > last ? end : last;
        }
        *span = (struct cw_index_span){.offset_bytes = begin, .size_bytes = end - begin};
    }
}

void cw_index_leaf(const struct cw_index *index, uint32_t number, cw_leaf *out) {
    const struct cw_index_leaf *leaf = &index->leaves[number];
    *out = (cw_leaf){
        .path = index->text + leaf->path_at,
        .layout = {.ndim = leaf->ndim,
                   .itemsize = leaf->itemsize,
                   .shape = index->numbers + leaf->shape_at,
                   .strides = leaf->strided ? index->numbers + leaf->shape_at + leaf->ndim : NULL,
                   .dtype = index->text + leaf->dtype_at},
        .offset_bytes = leaf->offset_bytes,
        .size_bytes = leaf->size_bytes,
        .hash = leaf->hash,
        .part = leaf->part,
        .alias = leaf->alias,
        .kind = leaf->kind,
        .flags = leaf->flags};
}
