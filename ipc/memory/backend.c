/*
 * Backends by device name, and the list of devices.
 *
 * "cpu" is the host. "cuda:N" is a GPU by this process's mask, "cuda" the first one; whether there
 * is one is asked of the driver when it is needed. No state; from any thread.
 */
#include "ipc/memory/backend.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cableway.h"
#include "shm/base/error.h"

/* The number in "cuda" or "cuda:N"; -1: it is neither. */
static int cuda_ordinal(const char *device) {
    if (strncmp(device, "cuda", 4) != 0)
        return -1;
    device += 4;
    if (*device == 0)
        return 0;
    if (*device++ != ':' || !isdigit((unsigned char)*device))
        return -1;
    char *end;
    unsigned long number = strtoul(device, &end, 10);
    return *end == 0 && number <= 9999 ? (int)number : -1;
}

int cw_backend_find(const char *device, const struct cw_backend **backend, int *ordinal) {
    if (!device)
        return cw_fail(-EINVAL, "a device name is needed (\"cpu\"), NULL was given");
    if (strcmp(device, "cpu") == 0) {
        *backend = &cw_backend_host;
        *ordinal = 0;
        return 0;
    }
    int number = cuda_ordinal(device);
    if (number < 0)
        return cw_fail(-EINVAL, "\"%.40s\" is no device name: they are \"cpu\" and \"cuda:N\"",
                       device);
    *backend = &cw_backend_cuda;
    *ordinal = number;
    return 0;
}

const struct cw_backend *cw_backend_of_kind(uint32_t device_kind) {
    return device_kind == CW_DEVICE_HOST   ? &cw_backend_host
           : device_kind == CW_DEVICE_CUDA ? &cw_backend_cuda
                                           : NULL;
}

int cw_devices(char **names, uint64_t *count) {
    int gpus;
    if (!names || !count)
        return cw_fail(-EINVAL, "places for the list are needed, NULL was given");
    int code = cw_backend_cuda.device_count(&gpus);
    if (code == -EDQUOT)
        return code; /* more than CW_GPUS_MAX, or no memory to look: a list without would be wrong
                      */
    if (code)
        gpus = 0; /* none that this process could use; cw_array_new() says why */
    char *list = malloc(sizeof "cpu" + (size_t)gpus * sizeof "cuda:9999"), *at = list;
    if (!list)
        return cw_fail(-EDQUOT, "no memory for a list of devices");
    at += sprintf(at, "cpu") + 1;
    for (int i = 0; i < gpus; i++)
        at += sprintf(at, "cuda:%d", i) + 1;
    *names = list;
    *count = 1 + (uint64_t)gpus;
    return 0;
}

int cw_device_check(const char *device) {
    const struct cw_backend *backend;
    uint8_t uuid[CW_UUID_BYTES];
    int ordinal;
    int code = cw_backend_find(device, &backend, &ordinal);
    return code ? code : backend->device_uuid(ordinal, uuid);
}

int cw_device_stat(const char *device, cw_device_info *out) {
    const struct cw_backend *backend;
    int ordinal;
    if (!out)
        return cw_fail(-EINVAL, "a place for the answer is needed, NULL was given");
    int code = cw_backend_find(device, &backend, &ordinal);
    return code ? code : backend->device_stat(ordinal, out);
}
