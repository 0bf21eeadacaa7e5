/*
 * NVML: see nvml.h. One thread. The declarations are those of nvml.h of the Toolkit, whose layout
 * its versioned names fix. A driver that lacks a call, or refuses one, is one that tells nothing.
 */
#include "tools/watch/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"

#define LIBRARY       "libnvidia-ml.so.1"
#define SUCCESS       0
#define NOT_AVAILABLE UINT64_MAX /* NVML_VALUE_NOT_AVAILABLE, as a size */
#define MEMORY_V2     (sizeof(struct memory_v2) | 2u << 24)

struct memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v2 { /* nvmlProcessInfo_v2_t, also of the calls named _v3 */
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static struct { /* of the library, which is opened once */
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*handle)(unsigned, void **);
    int (*uuid)(void *, char *, unsigned);
    int (*memory)(void *, struct memory_v2 *);
    int (*compute)(void *, unsigned *, struct process_v2 *);
    int (*graphics)(void *, unsigned *, struct process_v2 *);
} calls;

static bool load(void) {
    const char *path = secure_getenv("CABLEWAY_NVML");
    calls.library = dlopen(path && *path ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!calls.library)
        return false;
    const struct {
        void *call;
        const char *name;
    } names[] = {
        {&calls.init, "nvmlInit_v2"},
        {&calls.shutdown, "nvmlShutdown"},
        {&calls.count, "nvmlDeviceGetCount_v2"},
        {&calls.handle, "nvmlDeviceGetHandleByIndex_v2"},
        {&calls.uuid, "nvmlDeviceGetUUID"},
        {&calls.memory, "nvmlDeviceGetMemoryInfo_v2"},
        {&calls.compute, "nvmlDeviceGetComputeRunningProcesses_v3"},
        {&calls.graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(calls.library, names[i].name);
        if (!found)
            return false;
        memcpy(names[i].call, &found, sizeof found);
    }
    return true;
}

static bool open_all(struct nvml *nvml) {
    unsigned count = 0;
    if (!load() || calls.init() != SUCCESS)
        return false;
    if (calls.count(&count) != SUCCESS)
        count = 0;
    nvml->gpus = calloc(NVML_GPUS_MAX, sizeof *nvml->gpus);
    CW_ASSERT(nvml->gpus);
    for (unsigned i = 0; i < count && nvml->count < NVML_GPUS_MAX; i++) {
        struct nvml_gpu *gpu = &nvml->gpus[nvml->count];
        if (calls.handle(i, &gpu->handle) == SUCCESS &&
            calls.uuid(gpu->handle, gpu->uuid, sizeof gpu->uuid) == SUCCESS)
            nvml->count++;
    }
    return true;
}

/* A process with both kinds of context is told twice, with the same figure. */
static void add_process(struct nvml_gpu *gpu, const struct process_v2 *process) {
    if (process->used == NOT_AVAILABLE || gpu->count == NVML_PROCESSES_MAX)
        return;
    for (size_t i = 0; i < gpu->count; i++) {
        if (gpu->processes[i].pid == process->pid)
            return;
    }
    gpu->processes[gpu->count++] = (struct nvml_process){process->pid, process->used};
}

static bool look_at_processes(struct nvml_gpu *gpu,
                              int call(void *, unsigned *, struct process_v2 *)) {
    struct process_v2 processes[NVML_PROCESSES_MAX];
    unsigned count = NVML_PROCESSES_MAX;
    if (call(gpu->handle, &count, processes) != SUCCESS || count > NVML_PROCESSES_MAX)
        return false;
    for (unsigned i = 0; i < count; i++)
        add_process(gpu, &processes[i]);
    return true;
}

bool nvml_look(struct nvml *nvml) {
    if (nvml->state == NVML_UNTRIED)
        nvml->state = open_all(nvml) ? NVML_OPEN : NVML_MISSING;
    for (size_t i = 0; i < nvml->count; i++) {
        struct nvml_gpu *gpu = &nvml->gpus[i];
        struct memory_v2 memory = {.version = MEMORY_V2};
        gpu->count = 0;
        gpu->told = calls.memory(gpu->handle, &memory) == SUCCESS &&
                    look_at_processes(gpu, calls.compute) && look_at_processes(gpu, calls.graphics);
        gpu->used_bytes = memory.used;
    }
    return nvml->state == NVML_OPEN;
}

const struct nvml_gpu *nvml_find(const struct nvml *nvml, const char *uuid) {
    for (size_t i = 0; i < nvml->count; i++) {
        if (nvml->gpus[i].told && strcmp(nvml->gpus[i].uuid, uuid) == 0)
            return &nvml->gpus[i];
    }
    return NULL;
}

void nvml_close(struct nvml *nvml) {
    if (nvml->state == NVML_OPEN)
        calls.shutdown();
    free(nvml->gpus);
    *nvml = (struct nvml){.state = NVML_UNTRIED};
}
