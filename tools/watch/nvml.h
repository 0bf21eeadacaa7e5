/*
 * NVML: what the driver says of GPU memory, by process. Its library is opened at run time, where
 * there is one; $CABLEWAY_NVML names another one.
 */
#ifndef CW_TOOLS_WATCH_NVML_H
#define CW_TOOLS_WATCH_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NVML_GPUS_MAX      64u
#define NVML_PROCESSES_MAX 512u
#define NVML_UUID_BYTES    96u

struct nvml_process {
    uint32_t pid;
    uint64_t used_bytes;
};

struct nvml_gpu {
    char uuid[NVML_UUID_BYTES]; /* as nvidia-smi -L writes it */
    void *handle;
    bool told;           /* the following is of this look */
    uint64_t used_bytes; /* of the whole GPU, as nvidia-smi shows it */
    struct nvml_process processes[NVML_PROCESSES_MAX];
    size_t count;
};

struct nvml { /* zeros: not opened yet */
    enum { NVML_UNTRIED, NVML_OPEN, NVML_MISSING } state;
    struct nvml_gpu *gpus;
    size_t count;
};

/* Looks again; opens it at first, which may take the driver a moment. false: there is none. */
bool nvml_look(struct nvml *nvml);
/* NULL: NVML does not know it, or tells nothing. */
const struct nvml_gpu *nvml_find(const struct nvml *nvml, const char *uuid);
void nvml_close(struct nvml *nvml);

#endif
