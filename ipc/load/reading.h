/*
 * A read of a checkpoint's tensors, by threads of its own. See reading.c.
 */
#ifndef CW_IPC_LOAD_READING_H
#define CW_IPC_LOAD_READING_H

#include "ipc/cableway.h"

#define CW_READ_PIECE_BYTES (8ull << 20) /* that one thread has at a time */
#define CW_READ_THREADS_MAX 16u

#endif
