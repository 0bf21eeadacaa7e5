/*
 * Windows: memory of a member that others read or write during an operation.
 *
 * An array is exported by its handle and opened by the others for this operation alone, so that
 * nobody keeps what its owner has closed. Other memory goes through the member's *staging memory*,
 * an array of its own with two halves, which the others open once.
 *
 * Invariant: the halves take turns from piece to piece, also from one operation to the next, and
 * there is a meeting between two pieces. Who has arrived with a piece has read all of the piece
 * before; so when a half is written again, two pieces later, nobody reads it.
 *
 * Deaths: what a dead member had exported stays as long as others hold it, and is gone for those
 * who had not opened it yet: cw_group_failed() tells then that it died.
 */
#ifndef CW_IPC_GROUP_WINDOW_H
#define CW_IPC_GROUP_WINDOW_H

#include "ipc/group/page.h"

#define STAGE_BYTES (256u << 10) /* a half */

/* flags of a call */
#define GROUP_SEND_ARRAY    1u  /* handles[0]: what is sent; else the staging memory, if any */
#define GROUP_RECEIVE_ARRAY 2u  /* handles[1]: where others may write what is received */
#define GROUP_IN_PLACE      4u  /* the two overlap */
#define GROUP_GPU           8u  /* its memory lies on a GPU (gpu.c) */
#define GROUP_NEW_STAGE     16u /* others may not have opened its staging memory yet */
#define GROUP_CANNOT        32u /* later: it cannot do it with the arrays of the others */

/* Is this memory an array that others may open? 0 no, 1 yes; -EINVAL. bytes from memory.data
 * on have to lie in it. writable: it is received into. */
int cw_window_of(cw_group_memory memory, uint64_t bytes, bool writable);
/* The handle by which others open it. */
int cw_window_export(cw_group_memory memory, uint64_t bytes, cw_handle *out);
/* Opens what another member exported. The caller closes *out. -ETIMEDOUT, the broker did not
 * answer: the group is broken then. */
int cw_window_open(cw_group *group, uint32_t rank, unsigned which, uint64_t bytes, cw_array **out);

/* New host memory for an operation, which waits no longer for the broker than the operation may.
 * As cw_array_new(); -ETIMEDOUT. */
int cw_window_bytes_new(cw_group *group, uint64_t bytes, uint32_t flags, cw_array **out);

/* Our staging memory, made when first needed, and its handle into *handle. */
int cw_stage_make(cw_group *group, cw_handle *handle);
/* The half of our own that is written next. */
static inline uint8_t *cw_stage_own(const cw_group *group) {
    return (uint8_t *)cw_array_data(group->stage) + group->stage_half * STAGE_BYTES;
}
/* That half of another member's, by the handle in its call: NULL with the sentence in *code. */
uint8_t *cw_stage_of(cw_group *group, uint32_t rank, const cw_handle *handle, uint32_t half,
                     int *code);
/* Closes all. */
void cw_stages_close(cw_group *group);

#endif
