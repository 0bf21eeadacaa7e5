/*
 * Unnamed replicas: arrays of other nodes that are here and have no name yet. The bridge writes it,
 * clients of its node read it without asking anybody (ipc/array/fast_path.c); the names come when
 * the broker has time.
 *
 * A segment of CW_UNNAMED_RECORDS records of the directory's form (directory.h), read-only to
 * clients. A key has one place, by its hash; a later one takes an earlier one's. Who does not find
 * a key there asks: that it is missing means nothing.
 *
 * Invariant: what a reader copies was, at that moment, what its name means as far as it can be
 * known here: a record is erased before the bridge lets the array go, asks for a newer one, or
 * tells anybody that the name means something else. An array stays until its record is erased; a
 * reader takes its own lease, which fails if it has gone since. If the bridge dies they stay
 * as they were, and nobody keeps them true: they count only while the broker says that the session
 * for which they were made is its bridge's (cw_root.bridge). If it dies in the midst of a write the
 * record stays odd, and is not found. If it is stopped, or hangs, nobody keeps them true either,
 * and while all find what they want there nobody asks, so that the broker has no reason to look
 * after it (broker/roles/remote.h): a record says when it was put there, and counts for
 * CW_UNNAMED_NS, by which time it has its name. Who comes later asks by the fast path, and then the
 * broker.
 */
#ifndef CW_SHM_NAMES_UNNAMED_H
#define CW_SHM_NAMES_UNNAMED_H

#include "shm/names/directory.h"
#include "shm/base/segment.h"
#include "shm/base/wait.h"

#define CW_UNNAMED_RECORDS      64u
#define CW_UNNAMED_RECORD_BYTES 1024u /* what does not fit has to wait for its name */
#define CW_UNNAMED_NS           1000000000

/* Makes one, for the bridge with this session of that run of the broker. 0 or -EDQUOT. */
int cw_unnamed_new(uint64_t instance, uint64_t session, struct cw_segment *out);
/* Maps one of that run; fd is taken over. 0, -EPROTO, -EDQUOT. */
int cw_unnamed_open(int fd, uint64_t instance, struct cw_segment *out);
/* For whom it was made. */
uint64_t cw_unnamed_session(const struct cw_segment *segment);
/* Where the bridge runs: it says so, who waits for it looks whether that is another core. */
struct cw_sleeper *cw_unnamed_bridge(const struct cw_segment *segment);
/* Where a key stands: below CW_UNNAMED_RECORDS. */
uint32_t cw_unnamed_index(const char *key, size_t key_bytes);
/* entry has key_bytes and meta_bytes, and as its id when it was put there (cw_now_ns()). false: it
 * does not fit, and nothing changed. */
bool cw_unnamed_put(struct cw_segment *segment, const struct cw_entry *entry, const char *key,
                    const void *meta);
void cw_unnamed_erase(struct cw_segment *segment, uint32_t index);
/* 0, or -ENOENT: it is not there, just being written, or was put there too long before now_ns. */
int cw_unnamed_find(const struct cw_segment *segment, const char *key, size_t key_bytes,
                    int64_t now_ns, struct cw_found *out);

#endif
