/*
 * A read of a checkpoint's tensors, by threads of its own. See reading.c.
 */
#ifndef CW_IPC_LOAD_READING_H
#define CW_IPC_LOAD_READING_H

#include "ipc/cableway.h"

#define CW_READ_PIECE_BYTES (4ull << 20) /* that one thread has at a time */
#define CW_READ_THREADS_MAX 16u
#define CW_READ_ALIGN       4096ull /* of files' places and of memory, without the page cache */
/* A piece, and what lies around it in the pages where it begins and ends. */
#define CW_READ_BUFFER_BYTES (CW_READ_PIECE_BYTES + 2 * CW_READ_ALIGN)

/* As cw_reading_begin(), into copies at once, each on a GPU of its own: reads[n * count + i] is
 * read i of copy n, of the same tensor and bytes. The hashes are set in the first copy's. */
int cw_reading_begin_copies(const cw_checkpoint *checkpoint, cw_read *reads, uint32_t count,
                            uint32_t copies, cw_reading **out);

/* Where the time of its pieces that are done went: the read's part of *out. */
void cw_reading_times(cw_reading *reading, cw_load_times *out);

#endif
