/*
 * What is to be read, checked. See reads.c.
 */
#ifndef CW_IPC_LOAD_READS_H
#define CW_IPC_LOAD_READS_H

#include "ipc/cableway.h"

/* Reads as cw_reading_begin_copies() has them. 0, -EINVAL. */
int cw_reads_check(const cw_checkpoint *checkpoint, const cw_read *reads, uint32_t count,
                   uint32_t copies);

#endif
