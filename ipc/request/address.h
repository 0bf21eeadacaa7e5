/*
 * Address: where a user's broker lives, and whether that place can be trusted.
 *
 * Folder: $CABLEWAY_DIR, else $XDG_RUNTIME_DIR/cableway (when that is a folder of ours), else
 * /tmp/cableway-UID. In it, for protocol version 4:
 *     cablewayd-v4[-JOB].sock   the socket
 *     cablewayd-v4[-JOB].lock   flock held by the broker; one line "PID FD INSTANCE\n" once it
 *                               listens (FD: its root segment, read through /proc/PID/fd/FD)
 *     cablewayd-v4[-JOB].door   the socket of its bridge, if one runs
 *     cablewayd-v4[-JOB].log    what a detached broker has to say, limited in size
 * JOB is the first of SLURM_JOB_ID, PBS_JOBID, LSB_JOBID and JOB_ID that is set; characters outside
 * [A-Za-z0-9_.-] become '_'.
 *
 * The folder must be a directory (no symbolic link), ours, and closed to everybody else (0700).
 * After the check everything in it is reached through the folder's descriptor, so that nobody can
 * put another folder in its place, and so that no path is too long for a socket.
 */
#ifndef CW_IPC_REQUEST_ADDRESS_H
#define CW_IPC_REQUEST_ADDRESS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define CW_ADDRESS_NAME_MAX 86 /* with "/proc/self/fd/NNNNNN/" before it, it fits a sockaddr_un */

struct cw_address { /* plain data; nothing to release */
    char folder[PATH_MAX];
    char socket_name[CW_ADDRESS_NAME_MAX]; /* within folder */
    char lock_name[CW_ADDRESS_NAME_MAX];
    char log_name[CW_ADDRESS_NAME_MAX];
    char socket_path[PATH_MAX + CW_ADDRESS_NAME_MAX]; /* the same as full paths, for messages */
    char lock_path[PATH_MAX + CW_ADDRESS_NAME_MAX];
    char log_path[PATH_MAX + CW_ADDRESS_NAME_MAX];
};

/*
 * Fills *out. place: NULL for the user's own folder, a path that ends in ".sock" for that very
 * socket (lock and log lie beside it, with the same stem), any other path for that folder.
 * A relative place is made absolute; a relative $CABLEWAY_DIR is refused, since each process would
 * look for it from its own working folder. Touches no file but $XDG_RUNTIME_DIR. Returns 0 or
 * -EINVAL (too long, empty, or relative in the environment).
 */
int cw_address_find(const char *place, struct cw_address *out);

/*
 * Opens and checks the folder; create: makes it (0700) if it is not there. The caller owns *fd
 * (O_PATH would not do for flock; it is an ordinary, close-on-exec directory descriptor).
 * Returns 0, -ENOENT (not there, create false), -EPERM (a symbolic link, another user's, or open to
 * others; the sentence says which and the remedy), another negative code.
 */
int cw_address_open_folder(const struct cw_address *address, bool create, int *fd);

/* The socket's address by way of the folder's descriptor; *length is what bind and connect take. */
void cw_address_sockaddr(const struct cw_address *address, int folder_fd, struct sockaddr_un *out,
                         socklen_t *length);

/* From then on the socket of that broker's bridge is meant (ipc/array/fast_path.h): .door in place
 * of .sock.
 */
void cw_address_to_fast_path(struct cw_address *address);

struct cw_lock_line { /* what a broker that listens wrote into its lock file */
    pid_t pid;
    int root_fd; /* in that process */
    uint64_t instance;
};
/* Reads the lock file. Returns 0, or -ENOENT: no broker listens (or its line is not whole). It does
 * not tell whether that broker still lives: its flock does. */
int cw_address_read_lock(const struct cw_address *address, int folder_fd, struct cw_lock_line *out);

/* Before a broker is started: does one of another protocol version run there? 0, or -EPROTO with
 * its version and ours: each would serve its own programs, and none would find the others' names.
 */
int cw_address_check_versions(const struct cw_address *address, int folder_fd);

#endif
