/*
 * A piece of a file, read by one thread: see piece.c.
 */
#ifndef CW_IPC_LOAD_PIECE_H
#define CW_IPC_LOAD_PIECE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/load/direct.h"

#define CW_PIECE_SEGMENTS 256u /* tensors of one piece */

struct cw_stretch { /* of one read */
    uint32_t read;
    uint64_t from_bytes, size_bytes; /* of the read; from_bytes a multiple of CW_SUM_PIECE */
    uint8_t *bytes;                  /* where they are in host memory, once they are read */
    uint64_t sum;                    /* of these, once they are */
};

struct cw_piece {
    uint32_t file, count;
    uint64_t offset_bytes, size_bytes; /* in the file */
    struct cw_stretch segments[CW_PIECE_SEGMENTS];
};

/*
 * Reads it and hashes it. buffer (of CW_READ_BUFFER_BYTES, aligned): into it, where segments are
 * then found; NULL: to where the segments' bytes point, and spare is such a buffer, for a file that
 * is read past the page cache. direct_bytes: added to, if so.
 */
int cw_piece_read(struct cw_piece *piece, struct cw_direct *file, uint8_t *buffer, uint8_t *spare,
                  uint64_t *direct_bytes);

#endif
