/*
 * Segment: a sealed memfd that several processes map.
 *
 * Its memory is allocated in full when it is made, after a check that there is enough: at a
 * cgroup's limit or RLIMIT_FSIZE the kernel returns no error, but kills or sends a signal
 * (FACTS.md). It is sealed against shrinking and growing, so that a mapping of it never faults. It
 * begins with a versioned header, so that a later run or a newer program can recognise its state.
 *
 * Owner: the struct cw_segment owns its mapping and, while fd >= 0, its descriptor.
 * If its maker dies, the segment lives on as long as any process has its fd or a mapping.
 */
#ifndef CW_SHM_BASE_SEGMENT_H
#define CW_SHM_BASE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CW_SEGMENT_MAGIC   0x6377736567303153ull /* "cwseg01S" */
#define CW_SEGMENT_VERSION 1u
#define CW_PAGE            4096u

enum cw_segment_kind {
    CW_SEGMENT_ROOT = 1, /* monitor page and directory root; broker writes, clients read */
    CW_SEGMENT_INDEX,    /* directory index; broker writes, clients read */
    CW_SEGMENT_RECORDS,  /* directory records; broker writes, clients read */
    CW_SEGMENT_SESSION,  /* one client's channel and first lease table; both write */
    CW_SEGMENT_LEASES,   /* a further lease table; the client writes, the broker reads */
    CW_SEGMENT_BLOCKS,   /* a slab's block table; maker, takers and broker write */
    CW_SEGMENT_FENCES,   /* one session's fences; that client writes, the broker poisons */
    CW_SEGMENT_UNNAMED,  /* replicas without a name yet; the bridge writes, clients read */
    CW_SEGMENT_TRACE,    /* a process's last events; it writes, who looks from outside reads */
};

struct cw_segment_header { /* 64 bytes, at offset 0 of every segment */
    uint64_t magic;
    uint32_t version;
    uint32_t kind; /* enum cw_segment_kind */
    uint64_t size_bytes;
    uint64_t instance; /* the broker's run that it belongs to; 0 when made by a client */
    uint64_t
        session; /* of a further lease table: whose it is, for who looks from outside; else 0 */
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct cw_segment_header) == 64, "layout");

struct cw_segment {
    int fd;     /* -1 when not held */
    void *base; /* NULL when not mapped */
    size_t size_bytes;
};

enum cw_segment_flags {
    CW_SEGMENT_READERS_ONLY =
        1,                   /* after mapping it writable here, forbid every later writable map */
    CW_SEGMENT_RAW = 2,      /* plain memory without a header (a slab's data) */
    CW_SEGMENT_UNMAPPED = 4, /* allocate and seal, do not map (implies RAW) */
};

/*
 * Is there room for size_bytes more of shared memory in this process? Looks at every memory cgroup
 * above this process (v1 and v2), MemAvailable and RLIMIT_FSIZE.
 * Returns 0 or -EDQUOT with the limit named. Does not block. A race with other allocators in the
 * same cgroup remains; a margin of CW_MEMORY_MARGIN_BYTES is kept free for it.
 */
#define CW_MEMORY_MARGIN_BYTES (16u << 20)
int cw_memory_check(uint64_t size_bytes);
/* The least room in any memory cgroup above this process, and that cgroup's folder; UINT64_MAX
 * without a limit. */
uint64_t cw_memory_cgroup_room(char *where, size_t where_bytes);

/*
 * Makes, allocates in full, seals and maps a segment; size_bytes is rounded up to a page.
 * label is what /proc shows ("cw-NAME"). The caller owns *out; cw_segment_close() ends it.
 * Returns 0, -EDQUOT (a limit, named), -EINVAL (size 0); -EINTR only if the thread is
 * interruptible. Touches every page: about 1 s/GiB.
 */
int cw_segment_create(const char *label, uint64_t size_bytes, uint32_t kind, uint64_t instance,
                      unsigned flags, struct cw_segment *out);
/* Whether a signal ends this thread's allocations (-EINTR, nothing is left) or is not looked at,
 * which is so at first. Returns how it was. */
bool cw_segment_interruptible(bool on);

/*
 * Maps a segment received from elsewhere; takes over fd, also on failure. Checks, before a byte is
 * used: that fd is shared memory (F_GET_SEALS), that it is sealed against shrinking (else -EPROTO),
 * its size, and for other than RAW the header's magic, version, kind and size.
 */
int cw_segment_open(int fd, uint64_t size_bytes, uint32_t kind, bool writable, unsigned flags,
                    struct cw_segment *out);

/* Closes only the descriptor and keeps the mapping. May be repeated. */
void cw_segment_close_fd(struct cw_segment *segment);
/* Unmaps and closes. May be repeated. */
void cw_segment_close(struct cw_segment *segment);

#endif
