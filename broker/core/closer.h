/*
 * Closer: a thread that closes descriptors, since close may block or take long.
 *
 * The broker has two: one for memory (freeing much of it takes milliseconds), and one for
 * descriptors of unexpected classes (a hostile file system can block close for as long as it likes;
 * then only other descriptors of that kind wait behind it). Each thread starts at its first use.
 */
#ifndef CW_BROKER_CORE_CLOSER_H
#define CW_BROKER_CORE_CLOSER_H

#include <stdint.h>

struct cwd_closer;

/* When all that was pushed is closed it writes 1 into the eventfd done_fd, which stays the
 * caller's. */
int cwd_closer_new(int done_fd, struct cwd_closer **out);
/* Takes fd over. Never blocks, never fails: where memory or threads run out it closes here, and may
 * block then. */
void cwd_closer_push(struct cwd_closer *closer, int fd);
/* The same of memory that somebody may still have mapped: its pages are made free first. */
void cwd_closer_push_empty(struct cwd_closer *closer, int fd, uint64_t size_bytes);
/* Not closed yet, and closed so far. Any thread. */
uint64_t cwd_closer_pending(struct cwd_closer *closer);
uint64_t cwd_closer_done(struct cwd_closer *closer);
/* Ends the thread if it is at rest; a thread that hangs in close is left to the process's end (and
 * so is its struct). NULL is allowed. */
void cwd_closer_free(struct cwd_closer *closer);

#endif
