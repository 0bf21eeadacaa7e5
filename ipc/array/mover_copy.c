/*
 * Jobs for cableway-mover: see mover_copy.h. No state but the environment's word, read once.
 */
#include "ipc/array/array.h"
#include "ipc/array/mover_copy.h"
#include "ipc/array/names.h"
#include "ipc/client.h"
#include "ipc/request/channel.h"

#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum cw_wish wished;
static char unknown[32];

static void read_wish(void) {
    const char *text = secure_getenv("CABLEWAY_ROUTE");
    if (!text || !*text || strcmp(text, "auto") == 0)
        wished = CW_WISH_NONE;
    else if (strcmp(text, "staged") == 0)
        wished = CW_WISH_STAGED;
    else if (strcmp(text, "mover") == 0)
        wished = CW_WISH_MOVER;
    else
        strncpy(unknown, text, sizeof unknown - 1);
}

int cw_route_wish(enum cw_wish *out) {
    pthread_once(&once, read_wish);
    if (*unknown)
        return cw_fail(-EINVAL,
                       "CABLEWAY_ROUTE=%s is no route between GPUs: they are \"auto\", \"staged\" "
                       "and \"mover\"",
                       unknown);
    *out = wished;
    return 0;
}

/* Where bytes of an array lie, for another process. The lock is held. */
static struct cw_block_range publish(cw_array *array, uint64_t offset_bytes) {
    struct cw_extent *extent = array->slab->locals[array->block].extent;
    if (extent)
        extent->published = true;
    return (struct cw_block_range){.slab = array->slab->id,
                                   .block = array->block,
                                   .gen = array->gen,
                                   .offset_bytes = array->offset_bytes + offset_bytes};
}

int cw_job_copy(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                uint64_t size_bytes) {
    cw_client *client = target->client;
    struct cw_copy job = {.size_bytes = size_bytes};
    struct iovec part = {&job, sizeof job};
    int code = cw_client_usable(client);
    if (code || size_bytes == 0)
        return code;
    pthread_mutex_lock(&client->lock);
    job.source = publish(source, source_bytes);
    job.target = publish(target, target_bytes);
    pthread_mutex_unlock(&client->lock);
    return cw_channel_call(client, CW_OP_COPY, &part, 1, NULL, NULL, CW_CALL_HELD, -1);
}

/* A copy of an array that is not mapped here, which is closed. */
static int take_copy(cw_array *unmapped, const char *device, cw_array **out) {
    cw_layout layout;
    cw_array *target;
    cw_array_layout(unmapped, &layout);
    int code = cw_array_new(unmapped->client, device, &layout, 0, &target);
    if (code == 0) {
        code = cw_array_wait(unmapped, -1);
        if (code == 0)
            code = cw_job_copy(target, 0, unmapped, 0, unmapped->size_bytes);
        if (code)
            cw_array_close(target);
    }
    cw_array_close(unmapped);
    if (code == 0)
        *out = target;
    return code;
}

int cw_get_copy(cw_client *client, const char *name, const char *device, cw_array **out) {
    cw_array *unmapped;
    if (!out || !device)
        return cw_needs("a device and a place for the array");
    int code = cw_get_unmapped(client, name, &unmapped);
    return code ? code : take_copy(unmapped, device, out);
}
