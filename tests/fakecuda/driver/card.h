/*
 * The card: what all processes of the test double share, as they would share the real GPUs.
 *
 * Memory is counted here, and given back by the kernel. Every piece of device memory has a *slot*
 * in the card's file, and whoever can still reach the piece holds an open file description that
 * has a read lock on the slot's byte: makers and importers in a descriptor of their own, exported
 * descriptors inside (see share.h). When the last of these is closed, by whatever way their
 * processes ended, the lock is gone, and with it the memory. Nobody counts down.
 *
 * Invariant: a slot is in use if and only if its byte is locked. Its size is written after the
 * lock was taken and read under the table's lock alone, so a process killed in between leaves a
 * slot without a lock, which is free.
 * The table's lock is a POSIX record lock on a file of its own: it ends with its process even if
 * a forked child lives on, which a lock of an open file description would not.
 */
#ifndef CW_TESTS_FAKECUDA_DRIVER_CARD_H
#define CW_TESTS_FAKECUDA_DRIVER_CARD_H

#include "tests/fakecuda/driver/config.h"

/* Opens the card's file, which the first process makes. Once, before all else. */
CUresult fake_card_open(void);
/* Takes size_bytes of a device's memory: *fd keeps them, *slot and *id name them. */
CUresult fake_card_take(int index, uint64_t size_bytes, int *fd, int *slot, uint64_t *id);
/* A descriptor of one's own that keeps a piece which somebody else still keeps. */
CUresult fake_card_join(int slot, uint64_t id, int *fd);
/* Which piece is it? For what came from another process: fails if it is none of this card's. */
CUresult fake_card_piece(int fd, int slot, uint64_t id, int *index, uint64_t *size_bytes);
uint64_t fake_card_used_bytes(int index);
/* Exclusive mode: the one process that has a context holds *fd. */
CUresult fake_card_exclusive(int index, int *fd);
/* A lost device stays lost, for all processes. */
void fake_card_lose(int index);
bool fake_card_lost(int index);

#endif
