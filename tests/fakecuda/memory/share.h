/*
 * Device memory as one descriptor, as the driver exports it.
 *
 * The descriptor is one end of a socket pair whose other end is closed. In its receive queue lies
 * one message with two descriptors: the memfd of the memory and the one that keeps its slot on the
 * card (card.h). An importer peeks at the message, which duplicates both and leaves it where it is,
 * so any number of processes can import, at any time, as long as anybody holds the descriptor,
 * also one that knows nothing of the test double. The kernel drops the message, and with it the
 * memory, when the last holder closes it.
 *
 * Like the real one it answers neither F_GET_SEALS nor mmap, and says nothing about its size.
 * Unlike it /proc/self/fd shows it as "socket:[N]" and not as "/dev/nvidiactl". The kernel allows a
 * user without privileges RLIMIT_NOFILE descriptors under way; each exported one counts as two.
 */
#ifndef CW_TESTS_FAKECUDA_MEMORY_SHARE_H
#define CW_TESTS_FAKECUDA_MEMORY_SHARE_H

#include <cuda.h>
#include <stdint.h>

struct fake_share { /* what the message says */
    uint32_t magic;
    int32_t slot;
    uint64_t id;
};

/* *fd is the caller's. memory_fd and keeper_fd stay the caller's. */
CUresult fake_share_export(struct fake_share share, int memory_fd, int keeper_fd, int *fd);
/* Reads from a descriptor of anybody's: INVALID_VALUE if it is none of ours. The two descriptors
 * are the caller's; fd stays as it was. Does not block. */
CUresult fake_share_import(int fd, struct fake_share *share, int *memory_fd, int *keeper_fd);

#endif
