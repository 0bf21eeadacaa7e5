/*
 * Folder: where this node's key, certificate, authority and list of peers lie.
 *
 *   node.key   the key, 0600, ours
 *   node.crt   the certificate that is shown, signed by the key itself or by an authority
 *   ca.crt     the authority whose word counts for peers with `key = ca`; there may be none
 *   ca.key     only where `cableway keygen --ca` made it
 *   peers      who is known (peer_list.h), 0600
 *   peers.lock who changes `peers` holds a lock on it (flock)
 *
 * In a job of SLURM all nodes have peers and ca.crt in common: they lie once in the folder job-ID
 * above the nodes' own (slurm.c), and count for each node that has no such file itself.
 *
 * Invariant: `peers` is always a whole file, the old one or the new one. Who changes it holds the
 * lock from before it reads until after it has renamed the new file over the old one, so of two
 * changes at once none is lost. The kernel ends the lock with its holder: one that is killed before
 * the rename leaves the old file and `peers.new`, which the next one removes; one that is killed
 * after it leaves the new file. One that is stopped with the lock keeps others out: they say so
 * after CWB_LOCK_NS and change nothing. The lock file itself stays for ever, since a name that
 * comes and goes would be two locks.
 */
#ifndef CW_BROKER_BRIDGE_TLS_FOLDER_H
#define CW_BROKER_BRIDGE_TLS_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

#define CWB_LOCK_NS 10000000000

/* The folder: $CABLEWAY_NODE_DIR, else $XDG_CONFIG_HOME/cableway, else ~/.config/cableway; in a job
 * for which `cableway peers from-slurm` was called, this node's folder in there. Returns folder. */
const char *cwb_node_folder(char folder[PATH_MAX]);
/* The same without looking for a job. */
const char *cwb_user_folder(char folder[PATH_MAX]);
/* The name of a job's folder in the user's: job-ID, and .N behind it when SLURM started it for the
 * Nth time anew. false: this is no job. */
#define CWB_JOB_NAME 64
bool cwb_job_name(char name[CWB_JOB_NAME]);
/* The name that SLURM gives this node, if the folder is one of its job; else NULL. */
const char *cwb_job_node(void);
/* Makes it and those above it that lack, for us alone. 0 or a negative code. */
int cwb_folder_make(const char *folder);
/* folder/name, with `suffix` behind. 0 or -EINVAL: too long. */
int cwb_folder_path(const char *folder, const char *name, char path[PATH_MAX]);
/* The same of a file that counts for this node: its own, or else, if the folder is one of a job's,
 * that which all nodes of the job have in common. *common: it is that (may be NULL). */
int cwb_folder_find(const char *folder, const char *name, char path[PATH_MAX], bool *common);
/* The node whose folder in a job's this is; NULL: it is none. */
const char *cwb_folder_job_node(const char *folder);
/* May we believe what stands in it? It is ours (or root's), nobody else may write it, and, if it is
 * secret, nobody else read it. 0, -ENOENT or -EINVAL with the sentence. */
int cwb_folder_trust(const char *path, bool secret);
/* A file that was not there before, open to write; NULL with errno. */
FILE *cwb_folder_create(const char *path, mode_t mode);
/* Locks the list of peers; returns a descriptor (closing it unlocks) or a negative code. Waits. */
int cwb_folder_lock(const char *folder);

/* Which file a name means, and as of when: two that are equal are the same file, unchanged. */
struct cwb_stamp {
    dev_t device;
    ino_t inode; /* 0: there is none */
    off_t size_bytes;
    struct timespec changed;
};
/* Of the file that counts, as cwb_folder_find() has it. */
struct cwb_stamp cwb_folder_stamp(const char *folder, const char *name);
bool cwb_stamp_same(const struct cwb_stamp *a, const struct cwb_stamp *b);

#endif
