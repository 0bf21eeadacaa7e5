/*
 * Unnamed replicas: arrays of other nodes that are in this node's memory and have no name here yet.
 * The bridge writes this segment, and clients of its node read it without asking anybody
 * (ipc/array/fast_path.c). The replicas get names when the broker has time.
 *
 * The segment has CW_UNNAMED_RECORDS records of the directory's form (directory.h), read-only to
 * clients. The hash of a key gives its one place; a later key replaces an earlier one there. So a
 * key that is missing means nothing: the reader asks the bridge.
 *
 * Invariant: the array that a reader finds is what its name meant at that moment, as far as this
 * node can know. The bridge erases a record before it lets the array go, asks for a newer one, or
 * tells anybody that the name means something else. An array stays until its record is erased. A
 * reader takes its own lease, which fails if the array has gone since.
 *
 * If the bridge dies, the records stay, but nobody keeps them true. So they count only while the
 * broker says that the session for which they were made is its bridge's (cw_root.bridge). If the
 * bridge dies in the middle of a write, the record stays odd, and is not found.
 *
 * If the bridge is stopped or hangs, nobody keeps the records true either. As long as all clients
 * find their arrays here, none of them asks, so the broker does not notice (broker/roles/remote.h).
 * So a record has the time when it was put there, and counts for CW_UNNAMED_NS; by then its array
 * has a name. After that, a client asks by the fast path, and then the broker.
 */
#ifndef CW_SHM_NAMES_UNNAMED_H
#define CW_SHM_NAMES_UNNAMED_H

#include "shm/names/directory.h"
#include "shm/base/segment.h"
#include "shm/base/wait.h"

#define CW_UNNAMED_RECORDS      64u
#define CW_UNNAMED_RECORD_BYTES 1024u /* an array that does not fit waits for its name */
#define CW_UNNAMED_NS           1000000000

/* Makes a segment for the bridge with this session of this run of the broker. 0 or -EDQUOT. */
int cw_unnamed_new(uint64_t instance, uint64_t session, struct cw_segment *out);
/* Maps a segment of this run; takes fd over. 0, -EPROTO, -EDQUOT. */
int cw_unnamed_open(int fd, uint64_t instance, struct cw_segment *out);
/* The session of the bridge for which it was made. */
uint64_t cw_unnamed_session(const struct cw_segment *segment);
/* The core on which the bridge runs. The bridge writes it; a client that waits for the bridge reads
 * it to see whether that is another core. */
struct cw_sleeper *cw_unnamed_bridge(const struct cw_segment *segment);
/* The place of a key: below CW_UNNAMED_RECORDS. */
uint32_t cw_unnamed_index(const char *key, size_t key_bytes);
/* Writes a record. entry has key_bytes and meta_bytes, and its id is the present time
 * (cw_now_ns()). false: the record does not fit, and nothing changed. */
bool cw_unnamed_put(struct cw_segment *segment, const struct cw_entry *entry, const char *key,
                    const void *meta);
void cw_unnamed_erase(struct cw_segment *segment, uint32_t index);
/* 0, or -ENOENT: the key is not there, is just being written, or is too old at now_ns. */
int cw_unnamed_find(const struct cw_segment *segment, const char *key, size_t key_bytes,
                    int64_t now_ns, struct cw_found *out);

#endif
