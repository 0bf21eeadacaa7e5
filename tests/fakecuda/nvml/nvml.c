/*
 * NVML as a test double: what $CABLEWAY_FAKENVML_FILE says at each call, a word after another:
 * UUID USED COUNT, then COUNT times PID BYTES, and so on for each GPU. Loaded by `cableway top`
 * where $CABLEWAY_NVML names it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS_MAX  8
#define SUCCESS   0
#define NOT_FOUND 6
#define TOO_SMALL 7

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct gpu {
    char uuid[64];
    unsigned long long used;
    unsigned count;
    struct process processes[64];
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned room);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *out);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out);
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *out);

static char handles[GPUS_MAX]; /* their addresses are the handles */

/* How many there are; NULL: nobody asks for more. */
static unsigned read_all(struct gpu *out) {
    const char *path = getenv("CABLEWAY_FAKENVML_FILE");
    FILE *file = path ? fopen(path, "re") : NULL;
    unsigned gpus = 0;
    struct gpu gpu;
    while (file && gpus < GPUS_MAX &&
           fscanf(file, "%63s %llu %u", gpu.uuid, &gpu.used, &gpu.count) == 3) {
        memset(gpu.processes, 0, sizeof gpu.processes);
        for (unsigned i = 0; i < gpu.count && i < 64; i++) {
            if (fscanf(file, "%u %llu", &gpu.processes[i].pid, &gpu.processes[i].used) != 2)
                abort();
        }
        out[gpus++] = gpu;
    }
    if (file)
        fclose(file);
    return gpus;
}

static int find(void *device, struct gpu *out) {
    struct gpu all[GPUS_MAX];
    unsigned count = read_all(all), index = (unsigned)((char *)device - handles);
    if (index >= count)
        return NOT_FOUND;
    *out = all[index];
    return SUCCESS;
}

int nvmlInit_v2(void) {
    return SUCCESS;
}

int nvmlShutdown(void) {
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    struct gpu all[GPUS_MAX];
    *count = read_all(all);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &handles[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned room) {
    struct gpu gpu;
    int code = find(device, &gpu);
    if (code == SUCCESS)
        snprintf(uuid, room, "%s", gpu.uuid);
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *out) {
    struct gpu gpu;
    if (out->version != (sizeof *out | 2u << 24))
        return NOT_FOUND;
    int code = find(device, &gpu);
    if (code == SUCCESS)
        out->used = gpu.used;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out) {
    struct gpu gpu;
    int code = find(device, &gpu);
    if (code == SUCCESS && *count < gpu.count)
        return TOO_SMALL;
    if (code == SUCCESS)
        memcpy(out, gpu.processes, gpu.count * sizeof *out);
    *count = code == SUCCESS ? gpu.count : 0;
    return code;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *out) {
    (void)device;
    (void)out;
    *count = 0;
    return SUCCESS;
}
