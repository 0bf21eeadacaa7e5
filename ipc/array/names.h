/*
 * Names, for callers within the library.
 */
#ifndef CW_IPC_ARRAY_NAMES_H
#define CW_IPC_ARRAY_NAMES_H

#include <stdint.h>

#include "ipc/cableway.h"

/* 0, or -EINVAL: flags for opening an array that do not exist, or exclude each other. */
int cw_open_flags_check(const char *function, uint32_t flags);
/* cw_get() with CW_UNMAPPED. */
int cw_get_unmapped(cw_client *client, const char *name, cw_array **out);

#endif
