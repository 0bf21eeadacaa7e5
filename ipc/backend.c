/*
 * Backends by device name, and the list of devices.
 *
 * "cpu" is the host. "cuda:N" is a name that every build knows, so that the error says what is
 * missing. No state; from any thread.
 */
#include "ipc/backend.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/causeway.h"
#include "shm/error.h"

/* Is it "cuda" or "cuda:N"? */
static int is_cuda_name(const char *device) {
    if (strncmp(device, "cuda", 4) != 0)
        return 0;
    device += 4;
    if (*device == 0)
        return 1;
    if (*device++ != ':' || !isdigit((unsigned char)*device))
        return 0;
    while (isdigit((unsigned char)*device))
        device++;
    return *device == 0;
}

int cw_backend_find(const char *device, const struct cw_backend **backend, int *ordinal) {
    if (!device)
        return cw_fail(-EINVAL, "a device name is needed (\"cpu\"), NULL was given");
    if (strcmp(device, "cpu") == 0) {
        *backend = &cw_backend_host;
        *ordinal = 0;
        return 0;
    }
    if (is_cuda_name(device))
        return cw_fail(-ENODEV,
                       "device \"%s\": this build of causeway has no CUDA backend; use "
                       "device=\"cpu\"",
                       device);
    return cw_fail(-EINVAL, "\"%.40s\" is no device name: they are \"cpu\" and \"cuda:N\"", device);
}

int cw_devices(char **names, uint64_t *count) {
    if (!names || !count)
        return cw_fail(-EINVAL, "places for the list are needed, NULL was given");
    *names = strdup(cw_backend_host.name);
    if (!*names)
        return cw_fail(-EDQUOT, "no memory for a list of devices");
    *count = 1;
    return 0;
}
