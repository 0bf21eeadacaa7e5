/*
 * The index of a tree: which leaves it has and where they lie, as the bytes of one host array.
 *
 *   head      128 bytes
 *   parts     64 bytes each: the blocks in which leaves lie
 *   leaves    64 bytes each
 *   numbers   int64_t: of each leaf its shape, then (strided) its strides in bytes
 *   text      of each leaf its path, then its dtype unless that is the dtype of the leaf before;
 *             each ends with a zero byte
 *   metadata  the publisher's, to the end
 *
 * All little-endian, one behind the other, without gaps: what a tree is has one form only, so that
 * no byte of an index means nothing, and writing again what was read gives the same bytes.
 *
 * Invariants of an index that was read (cw_index_read):
 *   X1  Each leaf lies within its part, and its layout spans exactly its bytes.
 *   X2  No two leaves share a byte, but an alias and the earlier leaf that it names share all.
 *   X3  No two leaves have the same path, no two parts the same block.
 *   X4  The hashes of the head are those of its leaves, its total_bytes their sum.
 *
 * Who writes it is another process: it is copied, the copy is checked, the copy is used. There is
 * no table of hashes in it: to check one takes as long as to build it, so the reader builds it.
 */
#ifndef CW_IPC_TREE_INDEX_H
#define CW_IPC_TREE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/meta.h"
#include "ipc/cableway.h"

#define CW_INDEX_MAGIC     0x3165657274776322ull
#define CW_INDEX_VERSION   1u
#define CW_INDEX_BYTES_MAX CW_META_INDEX_MAX
#define CW_PARTS_MAX       65536u /* CW_GROUP_MEMBERS_MAX */

struct cw_index_head {
    uint64_t magic; /* CW_INDEX_MAGIC */
    uint32_t version, reserved0;
    uint64_t size_bytes;   /* of all of it */
    uint64_t layout_hash;  /* of all but what lies in the leaves, and in which blocks (index.c) */
    uint64_t content_hash; /* of the leaves' hashes; 0 unless each has one */
    uint64_t total_bytes;  /* of the leaves that are no aliases */
    uint32_t parts, leaves, numbers, text_bytes;
    uint64_t meta_bytes;
    uint64_t reserved[7]; /* 0 */
};

struct cw_index_part {
    uint32_t slab, block;
    uint64_t gen;
    uint64_t offset_bytes, size_bytes; /* in the block */
    uint32_t device_kind, reserved0;
    uint8_t device_uuid[16];
    uint64_t reserved;
};

struct cw_index_leaf {
    uint64_t offset_bytes;      /* of its lowest byte, in its part; 0 of a leaf without bytes */
    uint64_t size_bytes;        /* that its layout spans */
    uint64_t hash;              /* of these; 0 unless CW_LEAF_HASHED */
    uint32_t path_at, dtype_at; /* in the text */
    uint32_t shape_at;          /* in the numbers */
    uint32_t part;              /* 0 of a leaf without bytes */
    uint32_t alias;             /* number + 1 of the earlier leaf that it is; 0: none */
    uint16_t path_bytes, dtype_bytes; /* without the zero */
    uint8_t ndim, kind, flags;
    uint8_t strided; /* 1: its strides are not those of C order, and stand behind its shape */
    uint32_t itemsize;
    uint64_t reserved; /* 0 */
};
_Static_assert(sizeof(struct cw_index_head) == 128 && sizeof(struct cw_index_part) == 64 &&
                   sizeof(struct cw_index_leaf) == 64,
               "layout");

struct cw_index { /* a private copy, checked, and its table */
    uint8_t *bytes;
    const struct cw_index_head *head;
    const struct cw_index_part *parts;
    const struct cw_index_leaf *leaves;
    const int64_t *numbers;
    const char *text;
    const uint8_t *meta;
    uint32_t *slots; /* leaf + 1, or 0 */
    uint32_t mask;
};

/* Copies and checks. size_bytes of bytes are there, whatever they say. 0, -EPROTO (with what is
 * wrong), -EDQUOT. */
int cw_index_read(const void *bytes, uint64_t size_bytes, struct cw_index *out);
void cw_index_deinit(struct cw_index *index);
/* The number of the leaf with this path. -ENOENT without a sentence. */
int cw_index_find(const struct cw_index *index, const char *path, uint32_t *number);
/*
 * Which bytes of a part its leaves need, from the first leaf's first byte (rounded down to
 * CW_LEAF_ALIGN, so that leaves lie in a copy of these as they lie here) to the last one's last;
 * what else the block has is not looked at. size_bytes 0: no leaf lies in it. spans has room for
 * all parts.
 */
struct cw_index_span {
    uint64_t offset_bytes, size_bytes; /* in the part */
};
void cw_index_spans(const struct cw_index *index, struct cw_index_span *spans);
/* One leaf; its pointers are borrowed from the index. */
void cw_index_leaf(const struct cw_index *index, uint32_t number, cw_leaf *out);
/* The bytes of an index: leaves with part and offset_bytes (in it) set. *bytes is the caller's:
 * free(). -EINVAL, -EDQUOT. What readers would refuse is not looked for. */
int cw_index_write(const struct cw_index_part *parts, uint32_t part_count, const cw_leaf *leaves,
                   uint32_t leaf_count, const void *meta, uint64_t meta_bytes, uint8_t **bytes,
                   uint64_t *size_bytes);
/* The two hashes of an index whose other bytes stand. */
uint64_t cw_index_layout_hash(const struct cw_index_head *head);
uint64_t cw_index_content_hash(const struct cw_index_head *head);

#endif
