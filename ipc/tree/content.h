/*
 * What lies in leaves, as a number. See content.c.
 */
#ifndef CW_IPC_TREE_CONTENT_H
#define CW_IPC_TREE_CONTENT_H

#include <stdint.h>

/* The hash (ipc/base/sum.h) of memory of this process. 0. */
int cw_bytes_hash(const void *bytes, uint64_t size_bytes, uint64_t *hash);

#endif
