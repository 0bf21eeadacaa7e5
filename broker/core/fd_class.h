/*
 * Classes of descriptors: what a descriptor from a client is, learned without a call that a hostile
 * file system could block (FACTS.md: fstat and close block, readlink and F_GET_SEALS do not).
 */
#ifndef CW_BROKER_CORE_FD_CLASS_H
#define CW_BROKER_CORE_FD_CLASS_H

#include <stdint.h>
#include <sys/types.h>

enum cwd_fd_class {
    CWD_FD_OTHER = 0,
    CWD_FD_MEMORY, /* memfd or tmpfs file: it answers F_GET_SEALS; fstat is safe after that */
    CWD_FD_PIDFD,
    CWD_FD_PIPE,
    CWD_FD_GPU,
    CWD_FD_UNKNOWN, /* the kernel had no memory to tell */
};

enum cwd_fd_class cwd_fd_class(int fd);
/* What is said of one that is not of the class that it should be: -EDQUOT if it is UNKNOWN, else
 * -EPROTO with this sentence. */
int cwd_fd_refuse(enum cwd_fd_class is, const char *sentence);
/* The process behind a descriptor of class PIDFD; 0 when it has ended; -EDQUOT when the broker has
 * no descriptor left to look with. */
pid_t cwd_fd_pid(int fd);
/* Of class MEMORY: size and seals. fully: every page is allocated. False if it cannot be told. */
struct cwd_fd_memory {
    uint64_t size_bytes;
    int seals;
    int is_memfd; /* of the kernel's own tmpfs, small pages: a fault in it never needs a mount's
                   * room
                   */
};
int cwd_fd_memory(int fd, struct cwd_fd_memory *out);
/* Of class MEMORY: which memory it is, as /proc tells it; 0 if that cannot be told. */
uint64_t cwd_fd_inode(int fd);

#endif
