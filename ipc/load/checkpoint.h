/*
 * A checkpoint: one or several .safetensors files, open, their headers checked. See checkpoint.c.
 */
#ifndef CW_IPC_LOAD_CHECKPOINT_H
#define CW_IPC_LOAD_CHECKPOINT_H

#include <sys/stat.h>

#include "ipc/cableway.h"

struct cw_checkpoint_file {
    char *path; /* the real one */
    int fd;
    struct stat status; /* at its opening */
    cw_safetensors *header;
    uint64_t data_at; /* where the data begin */
};

struct cw_checkpoint {
    char *path; /* as it was asked for */
    struct cw_checkpoint_file *files;
    uint32_t file_count;
    cw_tensor *tensors; /* of all files, in the order of files and data; offset_bytes in the file */
    uint32_t tensor_count;
    uint64_t total_bytes;
    char *identity; /* which files these are, as JSON: see cw_checkpoint_identity() */
};

/* Are the files still what they were when they were opened? 0, or -EPROTO, naming one. */
int cw_checkpoint_unchanged(const cw_checkpoint *checkpoint);

#endif
