/*
 * Pidfds: a descriptor by which a process is watched. One place that opens them and says what an
 * error means: the kernel lacks the call, a sandbox forbids it, or descriptors have run out.
 */
#ifndef CW_SHM_BASE_PIDFD_H
#define CW_SHM_BASE_PIDFD_H

#include <sys/types.h>

/* Opens one, close-on-exec as they all are. Returns it, or < 0 with the sentence: -EDQUOT no
 * descriptor or memory left, -ESRCH no such process, -EPERM forbidden, -ENOSYS an old kernel. */
int cw_pidfd_open(pid_t pid);
/* What to do about an error of pidfd_open. */
const char *cw_pidfd_remedy(int error);

#endif
