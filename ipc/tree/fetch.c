/*
 * Trees of other nodes: the index first, then each part, and then an index of our own.
 *
 * What the other node has is its index, an array of bytes that is fetched as any other array: the
 * bridge keeps it as the replica of the name, and drops it when the name means something else. In
 * it parts are named as that node names them. Each part is fetched as an array of its own, which
 * stands here under a name that says which bytes these are (that node's broker, block, generation,
 * and where in it), so that all processes of this node share it, two that ask at once fetch it
 * once, and a later version that has the same part finds it here. Then an index is written that
 * names the parts as they lie here, GROUP ties them to it, and it is a tree as any other: it has no
 * name, and who has it is the process that asked, and those to which it sends it.
 *
 * Invariants:
 *   F1  What the other node sent is checked as the index of this node is (cw_index_read()): by its
 *       bytes it is no better than what a hostile process writes.
 *   F2  There is no tree before all of its parts are here, whole and checked. So it is whole or
 *       absent, whoever dies. Until then this call has a lease on each part that is here.
 *   F3  All parts are of one version: each is asked for by the version's number, which the other
 *       node answers by that version or by -ESTALE.
 *
 * What is left when somebody dies in the midst is what a get of arrays leaves: parts that are here,
 * without a user, which the bridge lets go of after a while (broker/bridge/fetch/replica_gc.c).
 *   this process            so
 *   a bridge, or the link   the part that is coming is asked for again; parts that are here stay
 *   the other node's bridge if the name means the version still, it goes on; else -ESTALE: it
 * begins anew with the version that the name means then the other node's broker the name is gone:
 * -ENOENT or -EREMOTEIO this node's broker      -ECONNRESET
 *
 * State: of the call alone. Any thread.
 */
#include "ipc/tree/fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ipc/array/array.h"
#include "ipc/array/remote_name.h"
#include "ipc/client.h"
#include "ipc/tree/tree.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define VERSIONS_MOST 16u /* that went while they were fetched, one after the other */

struct fetching {
    cw_client *client;
    const struct cw_name_key *key;
    const char *const *devices; /* none: host memory; one: for all; else of each GPU there */
    uint32_t device_count;
    int64_t until_ns; /* by cw_now_ns(), of timeout_ns */
    int64_t timeout_ns;
    struct cw_meta_remote_tree about;
    struct cw_index index; /* as the other node has it */
    struct cw_index_span *spans;
    cw_array **arrays;           /* of each part: ours; NULL: no leaf lies in it */
    struct cw_index_part *parts; /* as they lie here */
    uint32_t *numbers;           /* of each part there the number here */
    uint32_t part_count;
};

static int64_t left_ns(const struct fetching *f) {
    int64_t left = f->until_ns - cw_now_ns();
    if (f->timeout_ns < 0)
        return -1;
    return left > 0 ? left : 0;
}

/* ---- where parts are to lie ---- */

static bool same_device(const struct cw_index_part *a, const struct cw_index_part *b) {
    return a->device_kind == b->device_kind &&
           memcmp(a->device_uuid, b->device_uuid, sizeof a->device_uuid) == 0;
}

/* Which of its GPUs, in the order in which parts come, a part lies on. */
static uint32_t number_of_gpu(const struct cw_index *index, uint32_t part) {
    uint32_t number = 0;
    for (uint32_t i = 0; !same_device(&index->parts[i], &index->parts[part]); i++) {
        bool first = index->parts[i].device_kind == CW_DEVICE_CUDA;
        for (uint32_t k = 0; k < i && first; k++)
            first = !same_device(&index->parts[k], &index->parts[i]);
        number += first;
    }
    return number;
}

static int place_of(const struct fetching *f, uint32_t part, const char **out) {
    *out = f->device_count == 1 ? f->devices[0] : "cpu";
    if (f->device_count < 2 || f->index.parts[part].device_kind != CW_DEVICE_CUDA)
        return 0;
    uint32_t number = number_of_gpu(&f->index, part);
    if (number >= f->device_count)
        return cw_fail(-EINVAL,
                       "the tree lies on more than the %u GPUs for which devices were given: give "
                       "one for each, or one for all of it",
                       f->device_count);
    *out = f->devices[number];
    return 0;
}

/* ---- parts ---- */

/* The same number for the same bytes, whichever version they are a part of. */
static void name_part(const struct fetching *f, uint32_t part, struct cw_remote *out) {
    const struct cw_index_part *at = &f->index.parts[part];
    const struct {
        uint64_t instance, gen, offset_bytes, size_bytes;
        uint32_t slab, block;
    } bytes = {.instance = f->about.instance,
               .gen = at->gen,
               .offset_bytes = at->offset_bytes + f->spans[part].offset_bytes,
               .size_bytes = f->spans[part].size_bytes,
               .slab = at->slab,
               .block = at->block};
    XXH128_hash_t hash = XXH3_128bits(&bytes, sizeof bytes);
    *out = (struct cw_remote){.verb = CW_REMOTE_GET,
                              .flags = CW_REMOTE_PART,
                              .instance = f->about.instance,
                              .block = part,
                              .gen = f->about.version,
                              .offset_bytes = hash.low64,
                              .size_bytes = hash.high64};
}

static int fetch_part(struct fetching *f, uint32_t part) {
    struct cw_remote remote;
    const char *device;
    cw_array *array;
    int code = place_of(f, part, &device);
    if (code)
        return code;
    name_part(f, part, &remote);
    code = cw_remote_get_part(f->client, f->key, &remote, device, left_ns(f), &array);
    if (code)
        return code;
    if (array->size_bytes != f->spans[part].size_bytes) {
        uint64_t size_bytes = array->size_bytes;
        cw_array_close(array);
        return cw_fail(-EPROTO, "part %u of the tree has %llu bytes, its index says %llu", part,
                       (unsigned long long)size_bytes,
                       (unsigned long long)f->spans[part].size_bytes);
    }
    f->parts[f->part_count] = cw_part_of(array);
    f->arrays[part] = array;
    f->numbers[part] = f->part_count++;
    return 0;
}

/* ---- the index ---- */

static int build(struct fetching *f, cw_tree **out) {
    struct cw_index index;
    cw_array *array;
    int code = 0;
    for (uint32_t i = 0; i < f->index.head->parts && code == 0; i++)
        if (f->spans[i].size_bytes)
            code = fetch_part(f, i);
    if (code == 0)
        code = cw_index_move(f->client, &f->index, f->spans, f->numbers, f->parts, f->part_count,
                             &index, &array);
    if (code)
        return code;
    cw_array_freeze(array);
    code = cw_index_group(f->client, array, f->parts, f->part_count);
    if (code) {
        cw_index_deinit(&index);
        cw_array_close(array);
        return code;
    }
    code = cw_tree_make(f->client, array, f->about.version, &index, out);
    if (code == 0)
        (*out)->instance = f->about.instance;
    return code;
}

static int make_room(struct fetching *f) {
    const size_t count = f->index.head->parts + 1u;
    f->spans = malloc(count * sizeof *f->spans);
    f->arrays = calloc(count, sizeof(void *));
    f->parts = malloc(count * sizeof *f->parts);
    f->numbers = calloc(count, sizeof *f->numbers);
    return f->spans && f->arrays && f->parts && f->numbers
               ? 0
               : cw_fail(-EDQUOT, "no memory for a tree of %zu parts", count - 1);
}

/* The index there, which is checked and copied, and the lease on what came. */
static int fetch_index(struct fetching *f, uint64_t version, cw_array **out) {
    cw_array *there;
    int code = cw_remote_index(f->client, f->key, left_ns(f), &f->about, &there);
    if (code)
        return code;
    if (version && version != f->about.version)
        code = cw_fail(-ENOENT,
                       "the name means version %llu there, and only that can be fetched from "
                       "another node, not version %llu",
                       (unsigned long long)f->about.version, (unsigned long long)version);
    if (code == 0 && (there->slab->device_kind != CW_DEVICE_HOST || !there->bytes))
        code = cw_fail(-EPROTO, "the index of the tree is not in host memory");
    if (code == 0)
        code = cw_index_read(there->bytes, there->size_bytes, &f->index);
    if (code)
        cw_array_close(there);
    else
        *out = there;
    return code;
}

/* One version, from its index on. */
static int fetch(struct fetching *f, uint64_t version, cw_tree **out) {
    cw_array *there;
    int code = fetch_index(f, version, &there);
    if (code)
        return code;
    code = make_room(f);
    if (code == 0) {
        cw_index_spans(&f->index, f->spans);
        code = build(f, out);
    }
    for (uint32_t i = 0; i < f->index.head->parts && f->arrays; i++)
        cw_array_close(f->arrays[i]);
    cw_array_close(there); /* not before: what nobody has gives way where parts need room */
    free(f->spans);
    free(f->arrays);
    free(f->parts);
    free(f->numbers);
    cw_index_deinit(&f->index);
    f->spans = NULL;
    f->arrays = NULL;
    f->parts = NULL;
    f->numbers = NULL;
    f->part_count = 0;
    return code;
}

int cw_tree_fetch(cw_client *client, const struct cw_name_key *key, uint64_t version,
                  const char *const *devices, uint32_t count, int64_t timeout_ns, cw_tree **out) {
    struct fetching f = {.client = client,
                         .key = key,
                         .devices = devices,
                         .device_count = count,
                         .timeout_ns = timeout_ns,
                         .until_ns = cw_end_ns(cw_now_ns(), timeout_ns)};
    int code = -ESTALE;
    for (unsigned tries = 0; code == -ESTALE && tries < VERSIONS_MOST; tries++)
        code = fetch(&f, version, out);
    return code;
}

int cw_tree_fetch_description(cw_client *client, const struct cw_name_key *key, int64_t timeout_ns,
                              cw_tree **out) {
    struct fetching f = {.client = client,
                         .key = key,
                         .timeout_ns = timeout_ns,
                         .until_ns = cw_end_ns(cw_now_ns(), timeout_ns)};
    cw_array *there;
    int code = fetch_index(&f, 0, &there);
    if (code)
        return code;
    cw_array_close(there);
    code = cw_tree_make(client, NULL, f.about.version, &f.index, out);
    if (code == 0)
        (*out)->instance = f.about.instance;
    return code;
}
