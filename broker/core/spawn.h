/*
 * Starting one of our own programs as a child: standard input closed, output and errors into the
 * log, no signal blocked. Nothing here waits for it; its end shows at its pidfd.
 */
#ifndef CW_BROKER_CORE_SPAWN_H
#define CW_BROKER_CORE_SPAWN_H

#include <sys/types.h>

/* The path of a program: what the environment's variable names, else the one beside this program.
 * path: PATH_MAX bytes. 0; or -ENOENT, -ENAMETOOLONG, of which errno has the reason; or -EDQUOT
 * with the sentence. */
int cwd_spawn_find(const char *program, const char *variable, char *path);
/* argv and environment end with NULL. tell_fd: what the child has as CWD_TELL_FD, -1 nothing. 0 and
 * *pid, *pidfd (the caller's, to be waited for and closed); or -EDQUOT, -ENOENT with the sentence.
 */
int cwd_spawn(const char *path, char *const argv[], char *const environment[], int tell_fd,
              pid_t *pid, int *pidfd);

#endif
