/*
 * The slab registry: see slabs.h. The loop's thread owns all. What the maker declared is checked
 * against what the descriptors show before anything is mapped; from then on the broker uses its own
 * copies. The maker's death makes an orphan; the broker's death frees what no client has mapped.
 */
#include "broker/memory/slabs.h"
#include "broker/memory/slab_limits.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/closer.h"
#include "broker/core/fd_class.h"
#include "broker/memory/groups.h"
#include "broker/core/log.h"
#include "broker/core/monitor.h"
#include "broker/names/weak_names.h"
#include "broker/session/session.h"
#include "ipc/base/device.h"

#define ADOPT_LOOKS      65536u /* entries of tables that are read for one request in a turn */
#define ADOPT_BLOCKS_MAX 65536u

void cwd_fd_discard(struct cwd_broker *b, int fd) {
    enum cwd_fd_class class = cwd_fd_class(fd);
    bool untrusted = class == CWD_FD_OTHER || class == CWD_FD_UNKNOWN;
    cwd_closer_push(untrusted ? b->untrusted_closer : b->closer, fd);
}

struct cwd_slab *cwd_slab_find(struct cwd_broker *b, uint32_t id) {
    struct cwd_slab *slab;
    HASH_FIND(hh, b->slabs, &id, sizeof id, slab);
    return slab;
}

/* ---- taking in ---- */

/* The CUDA driver as a test double (tests/fakecuda) exports memory as sockets, which are of no
 * class. Said by the environment of the broker alone: else a client could pass off anything as a
 * GPU's memory. */
static bool test_driver(void) {
    const char *path = secure_getenv("CABLEWAY_CUDA_DRIVER");
    return path && *path;
}

static int check_data(const struct cw_slab_info *info, int fd) {
    enum cwd_fd_class class = cwd_fd_class(fd);
    if (class == CWD_FD_UNKNOWN)
        return cwd_fd_refuse(class, "");
    if (info->device_kind == CW_DEVICE_CUDA && info->flags & CW_SLAB_FOREIGN)
        return class == CWD_FD_MEMORY
                   ? 0
                   : cw_fail(-EINVAL, "borrowed GPU memory must come as a ticket in shared memory; "
                                      "this descriptor is none");
    if (info->device_kind == CW_DEVICE_CUDA)
        return class == CWD_FD_GPU || (class == CWD_FD_OTHER && test_driver())
                   ? 0
                   : cw_fail(-EINVAL, "the data of a GPU slab must come as the driver's "
                                      "descriptor; this is none");
    struct cwd_fd_memory memory;
    if (class != CWD_FD_MEMORY)
        return cw_fail(-EINVAL, "the data of a host slab must be shared memory; this descriptor "
                                "is none");
    int code = cwd_fd_memory(fd, &memory);
    if (code)
        return code;
    if (memory.size_bytes < info->size_bytes)
        return cw_fail(-EINVAL, "a slab of %llu bytes was announced, its data has %llu",
                       (unsigned long long)info->size_bytes, (unsigned long long)memory.size_bytes);
    if (!(info->flags & CW_SLAB_FOREIGN) && !(memory.seals & F_SEAL_SHRINK))
        return cw_fail(-EINVAL, "the data of a host slab must be sealed against shrinking, or be "
                                "announced as foreign");
    return 0;
}

/* Maps the table. Only a sealed memfd of small pages: no fault in it can then fail for a mount's or
 * a pool's sake. */
static int open_table(const struct cw_slab_info *info, int fd, struct cw_segment *out) {
    struct cwd_fd_memory memory;
    uint64_t bytes = cw_slab_table_bytes(info->device_kind, info->blocks);
    enum cwd_fd_class class = cwd_fd_class(fd);
    if (class != CWD_FD_MEMORY)
        return cwd_fd_refuse(class, "a block table must be shared memory; this descriptor is none");
    int code = cwd_fd_memory(fd, &memory);
    if (code)
        return code;
    if (!memory.is_memfd)
        return cw_fail(-EPROTO, "a block table must be a memfd of ordinary pages");
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return cw_fail(-EDQUOT, "the broker has no descriptor for a block table: %m; %s",
                       cw_descriptor_remedy(errno));
    return cw_segment_open(own, bytes, CW_SEGMENT_BLOCKS, true, 0, out);
}

static int check_numbers(const struct cw_slab_info *info) {
    if (info->device_kind != CW_DEVICE_HOST && info->device_kind != CW_DEVICE_CUDA)
        return cw_fail(-EINVAL, "there is no device kind %u", info->device_kind);
    if (info->blocks < 1 || info->blocks > CW_BLOCKS_MAX)
        return cw_fail(-EINVAL, "a block table of %u entries was announced: 1 to %u are possible",
                       info->blocks, CW_BLOCKS_MAX);
    if (info->size_bytes < 1 || info->size_bytes > INT64_MAX / 2)
        return cw_fail(-EINVAL, "a slab cannot have %llu bytes",
                       (unsigned long long)info->size_bytes);
    static const uint8_t none[sizeof info->device_uuid];
    bool has_uuid = memcmp(info->device_uuid, none, sizeof none) != 0;
    if (has_uuid != (info->device_kind == CW_DEVICE_CUDA))
        return cw_fail(-EINVAL, has_uuid ? "a slab in host memory has no GPU's UUID"
                                         : "a GPU slab needs the UUID of its GPU");
    if (info->flags & ~(uint32_t)CW_SLAB_FOREIGN)
        return cw_fail(-EINVAL, "slab flags 0x%x are not known", info->flags);
    return 0;
}

/* For who looks at all tables from outside. M1: figures only. */
static void show(struct cwd_slab *slab) {
    bool host = slab->info.device_kind == CW_DEVICE_HOST;
    uint64_t uuid[2];
    memcpy(uuid, slab->info.device_uuid, sizeof uuid);
    CW_STORE(M1, &slab->table->slab, slab->id, relaxed);
    CW_STORE(M1, &slab->table->owner, slab->info.owner_session, relaxed);
    CW_STORE(M1, &slab->table->device_kind, slab->info.device_kind, relaxed);
    CW_STORE(M1, &slab->table->device_uuid[0], uuid[0], relaxed);
    CW_STORE(M1, &slab->table->device_uuid[1], uuid[1], relaxed);
    CW_STORE(M1, &slab->table->data, host ? cwd_fd_inode(slab->data_fd) : 0, relaxed);
    CW_STORE(M1, &slab->table->orphan_ns, slab->owner ? 0 : (uint64_t)cw_now_ns(), relaxed);
}

static void charge(struct cwd_slab *slab, struct cwd_session *owner) {
    slab->owner = owner;
    slab->info.owner_session = owner->id;
    owner->slabs++;
    owner->bytes += slab->charge_bytes;
    owner->gpu_bytes += slab->gpu_bytes;
    show(slab);
}

static uint32_t next_id(struct cwd_broker *b) {
    do
        b->next_slab++;
    while (b->next_slab == 0 || cwd_slab_find(b, b->next_slab));
    return b->next_slab;
}

int cwd_slab_check(struct cwd_broker *b, struct cwd_session *owner, uint64_t size_bytes,
                   uint32_t blocks) {
    struct cw_slab_info info = {
        .device_kind = CW_DEVICE_HOST, .size_bytes = size_bytes, .blocks = blocks};
    int code = check_numbers(&info);
    return code ? code : cwd_slab_limits_new(b, owner, &info);
}

int cwd_slab_add(struct cwd_broker *b, struct cwd_session *owner, const struct cw_slab_info *info,
                 const int fds[2], struct cw_slab_info *out) {
    struct cw_segment table = {.fd = -1};
    int code = check_numbers(info);
    if (code == 0)
        code = cwd_slab_limits_new(b, owner, info);
    if (code == 0)
        code = check_data(info, fds[0]);
    if (code == 0)
        code = open_table(info, fds[1], &table);
    if (code) {
        cwd_fd_discard(b, fds[1]);
        goto discard_data;
    }
    close(fds[1]); /* a memfd of which the segment has its own descriptor: this takes no time */
    struct cw_block_table *mapped = table.base;
    uint32_t capacity = *(volatile uint32_t *)&mapped->capacity;
    uint64_t slab_bytes = *(volatile uint64_t *)&mapped->slab_bytes;
    if (capacity != info->blocks || slab_bytes != info->size_bytes) {
        code = cw_fail(-EINVAL,
                       "a block table for %u blocks and %llu bytes was announced, its "
                       "header says %u and %llu",
                       info->blocks, (unsigned long long)info->size_bytes, capacity,
                       (unsigned long long)slab_bytes);
        goto close_table;
    }
    struct cwd_slab *slab = calloc(1, sizeof *slab);
    if (!slab) {
        code = cwd_no_memory("a slab");
        goto close_table;
    }
    slab->id = next_id(b);
    slab->info = *info;
    slab->info.slab = slab->id;
    slab->info.reserved = 0;
    slab->capacity = capacity;
    slab->data_fd = fds[0];
    slab->data_is_known = info->device_kind == CW_DEVICE_HOST || info->flags & CW_SLAB_FOREIGN;
    slab->gpu_bytes = cwd_slab_gpu_bytes(info);
    slab->gap_bytes = CWD_GAP_UNKNOWN;
    slab->segment = table;
    slab->table = mapped;
    slab->charge_bytes =
        (info->device_kind == CW_DEVICE_HOST ? info->size_bytes : 0) + table.size_bytes;
    HASH_ADD(hh, b->slabs, id, sizeof slab->id, slab);
    if (!CWD_ADDED(slab)) {
        free(slab);
        code = cwd_no_memory("a slab");
        goto close_table;
    }
    charge(slab, owner);
    b->bytes += slab->charge_bytes;
    b->gpu_bytes += slab->gpu_bytes;
    b->fds += 2;
    CWD_COUNT(b, slabs_added);
    *out = slab->info;
    return 0;

close_table:
    cw_segment_close(&table);
discard_data:
    cwd_fd_discard(b, fds[0]);
    return code;
}

/* ---- giving back ---- */

/* empties: its memory is to be free although somebody may have it mapped. */
static void slab_close(struct cwd_broker *b, struct cwd_slab *slab, bool empties) {
    struct cwd_session *session;
    CW_ASSERT(!slab->owner && slab->refs == 0 && slab->waits == 0);
    /* S2: tells who still has it mapped; they look when their session's count moved. */
    CW_STORE(S2, &slab->table->closed, 1, release);
    for (session = b->sessions; session; session = session->hh.next)
        if (session->shared)
            CW_ADD(S2, &session->shared->closed_slabs, 1, release);
    if (slab->anchors)
        cwd_groups_end_in(b, slab->id);
    if (slab->weak_names)
        cwd_weak_names_end_in(b, slab->id);
    if (slab->suspected) {
        CW_ASSERT(slab->next || slab->prev == slab || slab != b->suspect); /* the list is whole */
        DL_DELETE(b->suspect, slab);
    }
    HASH_DEL(b->slabs, slab);
    b->orphans--;
    b->bytes -= slab->charge_bytes;
    b->gpu_bytes -= slab->gpu_bytes;
    b->gpu_orphan_bytes -= slab->gpu_bytes;
    b->fds -= 2;
    if (empties)
        cwd_closer_push_empty(b->closer, slab->data_fd, slab->info.size_bytes);
    else
        cwd_closer_push(slab->data_is_known ? b->closer : b->untrusted_closer, slab->data_fd);
    cwd_closer_push(b->closer, slab->segment.fd);
    slab->segment.fd = -1;
    cw_segment_close(&slab->segment);
    free(slab);
    CWD_COUNT(b, slabs_closed);
}

void cwd_slab_suspect(struct cwd_broker *b, struct cwd_slab *slab) {
    if (slab->suspected || slab->owner)
        return;
    slab->suspected = true;
    DL_APPEND(b->suspect, slab);
}

/* A word that the protocol never makes (a damaged table) is nobody's block: no edge could ever free
 * it, and the slab would stay for ever. */
static bool block_is_alive(struct cwd_slab *slab, uint32_t block) {
    /* B13: only a look; a word that a client changes meanwhile is that client's fault. */
    uint64_t word = CW_LOAD(B13, &slab->table->blocks[block].word, acquire);
    uint64_t bits = word & ((1ull << CW_BLOCK_GEN_SHIFT) - 1);
    return bits == CW_BLOCK_LIVE || bits == (CW_BLOCK_LIVE | CW_BLOCK_WANTED) ||
           bits == CW_BLOCK_RETIRING;
}

bool cwd_slab_has(struct cwd_slab *slab, uint32_t block, uint64_t gen) {
    /* B13: as above. */
    uint64_t word = CW_LOAD(B13, &slab->table->blocks[block].word, acquire);
    return cw_block_gen(word) == gen && block_is_alive(slab, block);
}

void cwd_slabs_sweep(struct cwd_broker *b) {
    struct cwd_slab *slab, *next;
    if (!b->suspect || b->reclaim.forgot)
        return;
    cwd_reclaim_mark_slabs(b, ++b->sweeps);
    DL_FOREACH_SAFE(b->suspect, slab, next) {
        if (!slab->owner && slab->unsettled == b->sweeps)
            continue;
        DL_DELETE(b->suspect, slab);
        slab->suspected = false;
        if (!slab->owner && slab->anchors)
            cwd_groups_end_damaged(b, slab);
        if (!slab->owner && slab->refs == 0 && slab->waits == 0)
            slab_close(b, slab, false);
    }
}

void cwd_slab_block_freed(struct cwd_broker *b, struct cwd_slab *slab) {
    slab->gap_bytes = CWD_GAP_UNKNOWN;
    if (slab->owner)
        /* S1: after B4; the owner loads it and then looks at the words that it waits for. */
        CW_ADD(S1, &slab->owner->shared->reclaimed, 1, release);
    else
        cwd_slab_suspect(b, slab);
}

void cwd_slab_orphan(struct cwd_broker *b, struct cwd_slab *slab) {
    CW_ASSERT(slab->owner && slab->owner->slabs > 0);
    slab->owner->slabs--;
    slab->owner->bytes -= slab->charge_bytes;
    slab->owner->gpu_bytes -= slab->gpu_bytes;
    b->gpu_orphan_bytes += slab->gpu_bytes;
    slab->owner = NULL;
    slab->gap_bytes = CWD_GAP_UNKNOWN;
    slab->info.owner_session = 0;
    show(slab);
    b->orphans++;
    /* Blocks that the owner never published, or whose last drop it had no time to tell. */
    for (uint32_t i = 0; i < slab->capacity; i++)
        cwd_reclaim_suspect(b, slab->id, i);
    cwd_slab_suspect(b, slab);
}

void cwd_slabs_orphan_of(struct cwd_broker *b, struct cwd_session *owner) {
    struct cwd_slab *slab, *next;
    if (owner->slabs == 0 && b->grouped == 0)
        return;
    HASH_ITER(hh, b->slabs, slab, next) {
        if (slab->owner == owner)
            cwd_slab_orphan(b, slab);
        else if (slab->anchors)
            cwd_slab_suspect(b, slab); /* it may have damaged them */
    }
}

void cwd_slab_withdraw(struct cwd_broker *b, struct cwd_slab *slab) {
    CW_ASSERT(slab->refs == 0 && slab->waits == 0);
    cwd_slab_orphan(b, slab);
    slab_close(b, slab, true);
    CWD_COUNT(b, slabs_withdrawn);
}

void cwd_slabs_deinit(struct cwd_broker *b) {
    struct cwd_slab *slab, *next;
    HASH_ITER(hh, b->slabs, slab, next) {
        HASH_DEL(b->slabs, slab);
        cw_segment_close(&slab->segment);
        cwd_closer_push(slab->data_is_known ? b->closer : b->untrusted_closer, slab->data_fd);
        free(slab);
    }
    b->suspect = NULL;
}

/* ---- adoption ---- */

struct extent {
    uint64_t begin, end;
};

static int compare_extents(const void *left, const void *right) {
    const struct extent *l = left, *r = right;
    return l->begin < r->begin ? -1 : l->begin > r->begin;
}

/* The largest piece that no live block covers, as far as the table can be believed; 0 if it has no
 * entry left for another block. CWD_GAP_UNKNOWN: no memory to look. */
static uint64_t largest_gap(struct cwd_slab *slab) {
    uint64_t size = slab->info.size_bytes, at = 0, largest = 0;
    uint32_t count = 0;
    struct extent *extents = malloc(slab->capacity * sizeof *extents);
    if (!extents)
        return CWD_GAP_UNKNOWN;
    for (uint32_t i = 0; i < slab->capacity; i++) {
        if (!block_is_alive(slab, i))
            continue;
        /* B13: numbers that a client wrote; they decide nothing of ours. */
        uint64_t offset = CW_LOAD(B13, &slab->table->blocks[i].offset_bytes, relaxed);
        uint64_t length = CW_LOAD(B13, &slab->table->blocks[i].length_bytes, relaxed);
        offset = offset < size ? offset : size;
        length = length < size - offset ? length : size - offset;
        extents[count++] = (struct extent){offset, offset + length};
    }
    if (count == slab->capacity) {
        free(extents);
        return 0;
    }
    qsort(extents, count, sizeof *extents, compare_extents);
    for (uint32_t i = 0; i < count; i++) {
        if (extents[i].begin > at && extents[i].begin - at > largest)
            largest = extents[i].begin - at;
        at = extents[i].end > at ? extents[i].end : at;
    }
    free(extents);
    return size - at > largest ? size - at : largest;
}

/* Is the table's header still what it was? A dead client may have written anything there, and who
 * maps it would refuse. */
static bool header_is_whole(struct cwd_slab *slab) {
    struct cw_block_table head;
    memcpy(&head, slab->table, sizeof head);
    return head.header.magic == CW_SEGMENT_MAGIC && head.header.version == CW_SEGMENT_VERSION &&
           head.header.kind == CW_SEGMENT_BLOCKS &&
           head.header.size_bytes == slab->segment.size_bytes && head.capacity == slab->capacity &&
           head.slab_bytes == slab->info.size_bytes;
}

static void hand_over(struct cwd_broker *b, struct cwd_slab *slab, struct cwd_session *owner) {
    b->orphans--;
    b->gpu_orphan_bytes -= slab->gpu_bytes;
    charge(slab, owner);
    cw_table_reset(slab->table); /* the dead owner may have written anything there */
    /* Its new owner waits for whatever its table calls alive: also for what nobody has. */
    for (uint32_t i = 0; i < slab->capacity; i++)
        cwd_reclaim_suspect(b, slab->id, i);
    CWD_COUNT(b, slabs_adopted);
}

/* Could it be meant? Tables larger than any library's are left alone: to sort them takes long. */
static bool adoptable(struct cwd_slab *slab, const struct cw_slab_request *wish) {
    return !slab->owner && slab->info.device_kind == wish->device_kind &&
           memcmp(slab->info.device_uuid, wish->device_uuid, sizeof wish->device_uuid) == 0 &&
           !(slab->info.flags & CW_SLAB_FOREIGN) && slab->info.size_bytes >= wish->free_bytes &&
           slab->capacity <= ADOPT_BLOCKS_MAX && header_is_whole(slab);
}

/* What a new owner finds free at least. Nobody carves an orphan and only the broker frees in it, so
 * what a look found holds until something of it comes back (cwd_slab_block_freed), or it has an
 * owner again. Who writes into the table all the same costs himself and others that slab until
 * then, no more: whoever adopts it reads it anew. */
static uint64_t gap_of(struct cwd_slab *slab, uint32_t *looked) {
    if (slab->gap_bytes == CWD_GAP_UNKNOWN) {
        *looked += slab->capacity;
        slab->gap_bytes = largest_gap(slab);
    }
    return slab->gap_bytes == CWD_GAP_UNKNOWN ? 0 : slab->gap_bytes;
}

int cwd_slab_adopt(struct cwd_broker *b, struct cwd_session *owner,
                   const struct cw_slab_request *wish, struct cw_slab_info *out) {
    struct cwd_slab *slab, *next;
    uint32_t looked = 0, from = owner->adopts_from;
    owner->adopts_from = 0;
    if (b->orphans == 0)
        return cw_fail(-ENOENT, "no slab is without an owner");
    if (owner->slabs >= CWD_LIMIT(b, max_client_slabs))
        return cwd_slab_limits(b, owner, wish->free_bytes, 0);
    HASH_ITER(hh, b->slabs, slab, next) {
        if (slab->id < from || !adoptable(slab, wish))
            continue;
        if (slab->gap_bytes == CWD_GAP_UNKNOWN && looked >= ADOPT_LOOKS) {
            owner->adopts_from = slab->id; /* each slab once: others are freed into meanwhile */
            return -EAGAIN;
        }
        uint64_t used;
        if (gap_of(slab, &looked) < wish->free_bytes ||
            cwd_slab_share(b, owner, slab->charge_bytes, &used) != CW_LIMIT_COUNT)
            continue;
        hand_over(b, slab, owner);
        *out = slab->info;
        return 0;
    }
    return cw_fail(-ENOENT, "no slab without an owner has %llu bytes free in one piece",
                   (unsigned long long)wish->free_bytes);
}
