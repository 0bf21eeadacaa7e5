/*
 * Handle bytes: see handle_bytes.h. Pure functions, and the two calls that use them.
 *
 * Who holds the array between cw_to_handle() and the last cw_from_handle() is the broker, by a
 * transit for so many openers (broker/memory/transit.h), whoever dies meanwhile.
 */
#include "ipc/array/handle_bytes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "ipc/array/array.h"
#include "ipc/base/hash.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"

#define KIND_ARRAY 1u

_Static_assert(sizeof(struct cw_handle_form) + CW_HANDLE_NODE_MAX + CW_HANDLE_ADDRESS_MAX +
                       CW_NAMESPACE_MAX + CW_META_BYTES_MAX + 8 <=
                   CW_HANDLE_BYTES_MAX,
               "layout");

_Static_assert(sizeof(((cw_handle_info *)0)->node) == CW_HANDLE_NODE_MAX + 1 &&
                   sizeof(((cw_handle_info *)0)->address) == CW_HANDLE_ADDRESS_MAX + 1 &&
                   sizeof(((cw_handle_info *)0)->name_space) == CW_NAMESPACE_MAX + 1,
               "texts");

static uint64_t realtime_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void node_name(char out[CW_HANDLE_NODE_MAX + 1]) {
    struct utsname system;
    const char *name = uname(&system) == 0 ? system.nodename : "";
    size_t length = strnlen(name, CW_HANDLE_NODE_MAX);
    memcpy(out, name, length);
    out[length] = 0;
}

/* ---- the form ---- */

uint32_t cw_handle_encode(const struct cw_handle_read *read, uint8_t *out) {
    const cw_handle_info *info = &read->info;
    struct cw_handle_form form = {.magic = CW_HANDLE_MAGIC,
                                  .version = CW_HANDLE_VERSION,
                                  .kind = KIND_ARRAY,
                                  .handle = read->handle,
                                  .openers = info->openers,
                                  .flags = info->flags,
                                  .made_ns = info->made_ns,
                                  .node_bytes = (uint16_t)strlen(info->node),
                                  .address_bytes = (uint16_t)strlen(info->address),
                                  .name_space_bytes = (uint16_t)strlen(info->name_space)};
    uint8_t *at = out + sizeof form;
    const char *texts[] = {info->node, info->address, info->name_space};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(texts[i]);
        memcpy(at, texts[i], length);
        at += length;
    }
    form.meta_bytes = (uint16_t)cw_meta_encode(&read->shape, at);
    at += form.meta_bytes;
    form.total_bytes = (uint32_t)(at - out) + 8;
    memcpy(out, &form, sizeof form);
    uint64_t check = cw_hash(out, (size_t)(at - out), 0);
    memcpy(at, &check, sizeof check);
    return form.total_bytes;
}

/* A text of that many bytes; *at goes behind it. False: one with a NUL, or longer than most. */
static bool take_text(const uint8_t **at, uint16_t bytes, uint32_t most, char *out) {
    if (bytes > most || memchr(*at, 0, bytes))
        return false;
    memcpy(out, *at, bytes);
    out[bytes] = 0;
    *at += bytes;
    return true;
}

static int check_form(const struct cw_handle_form *form, const uint8_t *bytes, uint64_t size) {
    uint64_t check;
    if (form->magic != CW_HANDLE_MAGIC)
        return cw_fail(-EPROTO,
                       "these %llu bytes are no handle of cableway: they do not begin as "
                       "what to_handle() gives",
                       (unsigned long long)size);
    if (form->version != CW_HANDLE_VERSION)
        return cw_fail(-EPROTO,
                       "a handle of version %u, this library reads version %u: let both "
                       "sides have the same cableway",
                       form->version, CW_HANDLE_VERSION);
    if (form->total_bytes != size)
        return cw_fail(-EPROTO,
                       "a handle of %u bytes came as %llu bytes: it was cut, or more was "
                       "put behind it",
                       form->total_bytes, (unsigned long long)size);
    memcpy(&check, bytes + size - sizeof check, sizeof check);
    if (cw_hash(bytes, size - sizeof check, 0) != check)
        return cw_fail(-EPROTO,
                       "a handle was damaged on its way: its check does not fit its bytes");
    if (form->kind != KIND_ARRAY)
        return cw_fail(-EPROTO, "malformed handle: of kind %u, which is none", form->kind);
    if (sizeof *form + form->node_bytes + form->address_bytes + form->name_space_bytes +
            (uint64_t)form->meta_bytes + sizeof check !=
        size)
        return cw_fail(-EPROTO, "malformed handle: its parts have not the bytes that it has");
    if (form->flags & ~(uint32_t)CW_READONLY || !form->openers || form->openers > CW_OPENERS_MAX)
        return cw_fail(-EPROTO, "malformed handle: flags %#x, %u openers", form->flags,
                       form->openers);
    return 0;
}

int cw_handle_decode(const void *bytes, uint64_t size, struct cw_handle_read *out) {
    struct cw_handle_form form;
    const uint8_t *at = (const uint8_t *)bytes + sizeof form;
    if (size < sizeof form + 8 || size > CW_HANDLE_BYTES_MAX)
        return cw_fail(-EPROTO, "these %llu bytes are no handle of cableway, which has %zu to %d",
                       (unsigned long long)size, sizeof form + 8, CW_HANDLE_BYTES_MAX);
    memcpy(&form, bytes, sizeof form);
    int code = check_form(&form, bytes, size);
    if (code)
        return code;
    out->handle = form.handle;
    out->info = (cw_handle_info){.instance = form.handle.instance,
                                 .made_ns = form.made_ns,
                                 .openers = form.openers,
                                 .flags = form.flags};
    if (!take_text(&at, form.node_bytes, CW_HANDLE_NODE_MAX, out->info.node) ||
        !take_text(&at, form.address_bytes, CW_HANDLE_ADDRESS_MAX, out->info.address) ||
        !take_text(&at, form.name_space_bytes, CW_NAMESPACE_MAX, out->info.name_space))
        return cw_fail(-EPROTO, "malformed handle: a text in it is none, or too long");
    return cw_meta_decode(at, form.meta_bytes, form.handle.size_bytes, &out->shape);
}

/* ---- with a broker ---- */

int cw_to_handle(cw_array *array, uint32_t openers, uint32_t flags, const cw_layout *layout,
                 uint64_t offset_bytes, void *out, uint64_t *size_bytes) {
    struct cw_handle_read read = {.info = {.openers = openers, .made_ns = realtime_ns()}};
    uint64_t low_bytes = 0;
    int code = cw_array_usable(array);
    if (code)
        return code;
    if (!out || !size_bytes)
        return cw_fail(-EINVAL, "a place for the handle and its size is needed, NULL was given");
    if (flags & ~(uint32_t)CW_READONLY)
        return cw_fail(-EINVAL, "cw_to_handle() takes CW_READONLY or no flags, not %#x", flags);
    if (openers < 1 || openers > CW_OPENERS_MAX)
        return cw_fail(-EINVAL, "a handle for %u openers was asked for; it can be for 1 to %d",
                       openers, CW_OPENERS_MAX);
    if (strlen(array->client->address) > CW_HANDLE_ADDRESS_MAX)
        return cw_fail(-EINVAL,
                       "the broker's address has %zu bytes, a handle has room for %d: use "
                       "a shorter CABLEWAY_DIR",
                       strlen(array->client->address), CW_HANDLE_ADDRESS_MAX);
    code = cw_put_view(array, layout, offset_bytes, &read.shape, &low_bytes);
    if (code)
        return code;
    node_name(read.info.node);
    strcpy(read.info.address, array->client->address);
    strcpy(read.info.name_space, array->client->name_space);
    read.info.flags = flags | (array->readonly ? (uint32_t)CW_READONLY : 0u);
    code = cw_array_export(array, (int)openers, &read.handle);
    if (code)
        return code;
    read.handle.offset_bytes += low_bytes; /* of that part, and no more */
    read.handle.size_bytes = read.shape.span_bytes;
    *size_bytes = cw_handle_encode(&read, out);
    return 0;
}

/* Of another broker, or of another run of this one: which, and what to do. */
static int refuse(cw_client *client, const cw_handle_info *info) {
    char node[CW_HANDLE_NODE_MAX + 1];
    node_name(node);
    if (strcmp(node, info->node) != 0)
        return cw_fail(-EXDEV,
                       "this handle is of node \"%s\" (namespace \"%s\"), this process runs on "
                       "\"%s\": a handle does not leave its node. Give the array a name and get "
                       "it as //%s/NAME",
                       info->node, info->name_space, node, info->node);
    if (strcmp(client->address, info->address) != 0)
        return cw_fail(-EXDEV,
                       "this handle is of the broker at %s (namespace \"%s\"), this process uses "
                       "the one at %s: connect to that one, or set CABLEWAY_DIR alike",
                       info->address, info->name_space, client->address);
    return cw_fail(-ESTALE,
                   "the array behind this handle went with the broker that held it, which was "
                   "started again at %s since: put the array again and make a new handle",
                   client->address);
}

int cw_from_handle(cw_client *client, const void *bytes, uint64_t size_bytes, uint32_t flags,
                   cw_array **out) {
    struct cw_handle_read read;
    int code = cw_client_usable(client);
    if (code)
        return code;
    if (!bytes || !out)
        return cw_fail(-EINVAL, "a handle and a place for the array are needed, NULL was given");
    code = cw_handle_decode(bytes, size_bytes, &read);
    if (code)
        return code;
    if (read.info.instance != client->instance)
        return refuse(client, &read.info);
    const cw_layout layout = {.ndim = read.shape.ndim,
                              .itemsize = read.shape.itemsize,
                              .shape = read.shape.shape,
                              .strides = read.shape.strides,
                              .dtype = read.shape.dtype};
    code = cw_array_open(client, &read.handle, &layout, flags | read.info.flags, out);
    if (code != -ESTALE)
        return code;
    uint64_t now_ns = realtime_ns();
    /* M1: a number to show, no order is needed. */
    uint64_t limit = CW_LOAD(M1, &client->root->limits[CW_LIMIT_transit_seconds], relaxed);
    return cw_fail(-ESTALE,
                   "the array behind this handle (slab %u, block %u) is gone: it was made %.1f s "
                   "ago for %u %s. The broker keeps it until it was opened so often, at most "
                   "%llu s (transit_seconds). Say openers=n if more will open it, or keep the "
                   "array open, or give it a name",
                   read.handle.slab, read.handle.block,
                   now_ns > read.info.made_ns ? (double)(now_ns - read.info.made_ns) / 1e9 : 0.0,
                   read.info.openers, read.info.openers == 1 ? "opener" : "openers",
                   (unsigned long long)limit);
}

int cw_handle_describe(const void *bytes, uint64_t size_bytes, cw_handle_info *out) {
    struct cw_handle_read read;
    if (!bytes || !out)
        return cw_fail(-EINVAL, "a handle and a place for what it says are needed, NULL was given");
    int code = cw_handle_decode(bytes, size_bytes, &read);
    if (code == 0)
        *out = read.info;
    return code;
}
