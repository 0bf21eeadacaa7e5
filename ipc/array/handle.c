/*
 * Handles: an array named for another process, carried by any means.
 *
 * A handle with a token stands for a transit lease at the broker: the client makes the token, so
 * that beginning one needs no reply. It begins only those for which the broker has memory already,
 * and says so (broker/memory/transit.h); so none is lost. Who opens it takes a lease first and says
 * so then; the last one's word ends the transit: at no moment is the array held by nobody. What a
 * handle says is checked against the slab's table; its slab and block may be anything.
 */
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "ipc/array/array.h"
#include "ipc/array/names.h"
#include "ipc/base/handle_form.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/request/channel.h"
#include "ipc/request/socket.h"

_Static_assert(CW_OPENERS_MAX == CW_TRANSIT_OPENERS_MAX, "limits");

/* Our row of the monitor page; NULL if the broker shows none. */
static const struct cw_monitor_client *own_row(cw_client *client) {
    struct cw_monitor_client *rows = client->root->clients;
    for (uint32_t i = 0; i < CW_MONITOR_CLIENTS; i++) {
        uint32_t at = (client->monitor_row + i) % CW_MONITOR_CLIENTS;
        /* M1: a number to show, no order is needed. */
        if (CW_LOAD(M1, &rows[at].session, relaxed) == client->session) {
            client->monitor_row = at;
            return &rows[at];
        }
    }
    return NULL;
}

static uint64_t transits_shown(cw_client *client) {
    const struct cw_monitor_client *row = own_row(client);
    return row ? CW_LOAD(M1, (cw_a64 *)(uintptr_t)&row->transits, relaxed) : 0;
}

/* How many the broker has memory for, counted from our first. */
static uint64_t transits_ready(cw_client *client) {
    /* S4: after the broker's answer to our ping, or before it: then we ping. */
    return CW_LOAD(S4, &client->shared->transits_ready, relaxed);
}

/* The broker can take no transit more of ours: why? */
static int refuse_transit(cw_client *client) {
    uint64_t limit = CW_LOAD(M1, &client->root->limits[CW_LIMIT_max_client_transits], relaxed);
    int code = cw_ping(client); /* our row of the monitor page is up to date now */
    if (code)
        return code;
    pthread_mutex_lock(&client->lock);
    bool limited = transits_shown(client) >= limit;
    uint32_t begun = client->transits;
    pthread_mutex_unlock(&client->lock);
    if (!limited)
        return cw_fail(-EDQUOT,
                       "a handle more than the %u that this client has made was asked for; the "
                       "broker has no memory to keep its array, or all clients together have as "
                       "many handles under way as it keeps (%u): open or discard some, or let it "
                       "have more memory",
                       begun, CW_TRANSITS_MAX);
    return cw_fail(-EDQUOT,
                   "a handle more than the %llu of this client that are under way was asked for; "
                   "max_client_transits allows no more: open or discard some. `cableway limit set "
                   "max_client_transits NUMBER` changes it now; for later brokers set it under "
                   "[limits] in cableway.conf, or CABLEWAY_MAX_CLIENT_TRANSITS",
                   (unsigned long long)limit);
}

/* The broker was ready for this many when we had used all. A ping lets it get ready for more: there
 * is no wait but this one, and only where we are quicker than it. */
static int more_transits(cw_client *client, uint64_t ready) {
    int code = cw_ping(client);
    if (code)
        return code;
    return transits_ready(client) > ready ? 0 : refuse_transit(client);
}

/* The BEGIN of a transit for so many openers. The caller holds the lock. */
static int push_begin(cw_client *client, const struct cw_block_ref *ref, int openers) {
    if (openers == 1)
        return cw_channel_push(client, CW_OP_TRANSIT_BEGIN, ref, sizeof *ref);
    const struct cw_transit_share share = {
        .ref = *ref, .openers = openers == CW_OPENERS_UNKNOWN ? CW_OPENERS_ANY : (uint32_t)openers};
    return cw_channel_push(client, CW_OP_TRANSIT_SHARE, &share, sizeof share);
}

/* Others may know of the array from now on, and (openers) the broker holds it for the handle. That
 * must stand in the ring before the handle leaves (or the broker, which reads the rings before it
 * takes a block back, would not see it): -EAGAIN where there is no room. -ENOBUFS: the broker is
 * ready for *ready, and we have used them all. */
static int begin_transit(cw_array *array, int openers, cw_handle *handle, uint64_t *ready) {
    cw_client *client = array->client;
    int code = 0;
    pthread_mutex_lock(&client->lock);
    *ready = openers ? transits_ready(client) : 0;
    if (openers && client->transits >= *ready) {
        pthread_mutex_unlock(&client->lock);
        return -ENOBUFS;
    }
    struct cw_extent *extent = array->slab->locals[array->block].extent;
    if (extent)
        extent->published = true;
    if (openers) {
        /* Under the lock: a session's tokens rise in the order of its BEGINs. */
        handle->token = (uint64_t)client->session << 32 | (client->transits + 1);
        struct cw_block_ref ref = {.token = handle->token,
                                   .slab = handle->slab,
                                   .block = handle->block,
                                   .gen = handle->gen};
        code = push_begin(client, &ref, openers);
        client->transits += code == 0;
        if (extent && code == 0)
            extent->told = true; /* the broker knows of it, and looks when the transit ends */
    }
    pthread_mutex_unlock(&client->lock);
    return code;
}

static int export(cw_array *array, int openers, cw_handle *out) {
    int code = cw_array_usable(array);
    if (code)
        return code;
    if (openers < CW_OPENERS_UNKNOWN || openers > CW_OPENERS_MAX)
        return cw_fail(-EINVAL,
                       "a handle for %d openers was asked for; it can be for 1 to %d, for 0 while "
                       "you keep the array, or for CW_OPENERS_UNKNOWN",
                       openers, CW_OPENERS_MAX);
    if (!out)
        return cw_fail(-EINVAL, "a place for the handle is needed, NULL was given");
    if (array->cow.base)
        return cw_fail(-EINVAL,
                       "a private array cannot be exported, since others would not see what is "
                       "written to it: copy it, or pass on the handle that it came from");
    cw_client *client = array->client;
    cw_handle handle = {.instance = client->instance,
                        .slab = array->slab->id,
                        .block = array->block,
                        .gen = array->gen,
                        .offset_bytes = array->offset_bytes,
                        .size_bytes = array->size_bytes};
    struct cw_interruptible wait = {.begun_ns = cw_now_ns()};
    uint64_t ready;
    while ((code = begin_transit(array, openers, &handle, &ready)) == -EAGAIN || code == -ENOBUFS) {
        code =
            code == -EAGAIN ? cw_channel_await_room(client, &wait) : more_transits(client, ready);
        if (code)
            return code;
    }
    if (code == 0)
        *out = handle;
    return code;
}

int cw_array_export(cw_array *array, int openers, cw_handle *out) {
    int code = cw_array_pin(array); /* once others may know of it, it stays */
    if (code)
        return code;
    code = export(array, openers, out);
    cw_array_unpin(array);
    return code;
}

/* op: TRANSIT_OPENED or TRANSIT_END */
static int say(cw_client *client, uint16_t op, const cw_handle *handle) {
    struct cw_block_ref ref = {
        .token = handle->token, .slab = handle->slab, .block = handle->block, .gen = handle->gen};
    return ref.token ? cw_channel_post(client, op, &ref, sizeof ref) : 0;
}

static int check_handle(cw_client *client, const cw_handle *handle) {
    if (!client || !handle)
        return cw_fail(-EINVAL, "a client and a handle are needed, NULL was given");
    int code = cw_client_usable(client);
    if (code)
        return code;
    if (handle->instance != client->instance)
        return cw_fail(-ESTALE, "the handle is of a broker that has ended, or of another one than "
                                "this process uses: put the array again and send a new handle");
    return 0;
}

int cw_array_open(cw_client *client, const cw_handle *handle, const cw_layout *layout,
                  uint32_t flags, cw_array **out) {
    struct cw_shape shape;
    int code = check_handle(client, handle);
    if (code == 0 && !out)
        code = cw_fail(-EINVAL, "a place for the array is needed, NULL was given");
    if (code == 0)
        code = cw_open_flags_check("cw_array_open", flags);
    if (code == 0)
        code = cw_layout_resolve(layout, &shape);
    if (code)
        return code;
    cw_handle copy = *handle;
    if (shape.span_bytes > copy.size_bytes)
        return cw_fail(-EINVAL, "a layout of %llu bytes does not fit a handle of %llu",
                       (unsigned long long)shape.span_bytes, (unsigned long long)copy.size_bytes);
    pthread_mutex_lock(&client->lock);
    code = cw_array_attach(client, copy.slab, copy.block, copy.gen, copy.offset_bytes,
                           copy.size_bytes, &shape, flags, out);
    pthread_mutex_unlock(&client->lock);
    if (code == 0)
        say(client, CW_OP_TRANSIT_OPENED, &copy); /* a lost broker shows at the next call */
    return code;
}

int cw_handle_skip(cw_client *client, const cw_handle *handle) {
    int code = check_handle(client, handle);
    return code ? code : say(client, CW_OP_TRANSIT_OPENED, handle);
}

int cw_handle_discard(cw_client *client, const cw_handle *handle) {
    int code = check_handle(client, handle);
    return code ? code : say(client, CW_OP_TRANSIT_END, handle);
}

/* ---- as bytes ---- */

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

int cw_handle_begin(const cw_client *client, uint32_t openers, uint32_t flags,
                    cw_handle_info *out) {
    if (flags & ~(uint32_t)CW_READONLY)
        return cw_fail(-EINVAL, "cw_to_handle() takes CW_READONLY or no flags, not %#x", flags);
    if (openers < 1 || openers > CW_OPENERS_MAX)
        return cw_fail(-EINVAL, "a handle for %u openers was asked for; it can be for 1 to %d",
                       openers, CW_OPENERS_MAX);
    if (strlen(client->address) > CW_HANDLE_ADDRESS_MAX)
        return cw_fail(-EINVAL,
                       "the broker's address has %zu bytes, a handle has room for %d: use a "
                       "shorter CABLEWAY_DIR",
                       strlen(client->address), CW_HANDLE_ADDRESS_MAX);
    *out = (cw_handle_info){.openers = openers, .flags = flags, .made_ns = realtime_ns()};
    node_name(out->node);
    strcpy(out->address, client->address);
    strcpy(out->name_space, client->name_space);
    return 0;
}

int cw_to_handle(cw_array *array, uint32_t openers, uint32_t flags, const cw_layout *layout,
                 uint64_t offset_bytes, void *out, uint64_t *size_bytes) {
    struct cw_handle_read read;
    uint64_t low_bytes = 0;
    int code = cw_array_usable(array);
    if (code)
        return code;
    if (!out || !size_bytes)
        return cw_needs("a place for the handle and its size");
    code = cw_handle_begin(array->client, openers, flags, &read.info);
    if (code == 0)
        code = cw_put_view(array, layout, offset_bytes, &read.shape, &low_bytes);
    if (code)
        return code;
    read.info.flags |= array->readonly ? (uint32_t)CW_READONLY : 0u;
    code = cw_array_export(array, (int)openers, &read.info.handle);
    if (code)
        return code;
    read.info.handle.offset_bytes += low_bytes; /* of that part, and no more */
    read.info.handle.size_bytes = read.shape.span_bytes;
    *size_bytes = cw_handle_encode(&read, out);
    return 0;
}

/* Of another broker, or of another run of this one: which, and what to do. */
static int refuse(cw_client *client, const cw_handle_info *info) {
    char node[CW_HANDLE_NODE_MAX + 1];
    node_name(node);
    if (*node && *info->node && strcmp(node, info->node) != 0)
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

int cw_handle_accept(cw_client *client, const void *bytes, uint64_t size_bytes,
                     struct cw_handle_read *out) {
    int code = cw_client_usable(client);
    if (code)
        return code;
    if (!bytes)
        return cw_needs("a handle");
    code = cw_handle_decode(bytes, size_bytes, out);
    if (code)
        return code;
    return out->info.handle.instance == client->instance ? 0 : refuse(client, &out->info);
}

int cw_handle_gone(cw_client *client, const cw_handle_info *info) {
    uint64_t now_ns = realtime_ns();
    /* M1: a number to show, no order is needed. */
    uint64_t limit = CW_LOAD(M1, &client->root->limits[CW_LIMIT_transit_seconds], relaxed);
    return cw_fail(-ESTALE,
                   "the %s behind this handle (slab %u, block %u) is gone: it was made %.1f s ago "
                   "for %u %s. The broker keeps it until it was opened so often, at most %llu s "
                   "(transit_seconds). Say openers=n if more will open it, or keep it open, or "
                   "give it a name",
                   info->tree_version ? "tree" : "array", info->handle.slab, info->handle.block,
                   now_ns > info->made_ns ? (double)(now_ns - info->made_ns) / 1e9 : 0.0,
                   info->openers, info->openers == 1 ? "opener" : "openers",
                   (unsigned long long)limit);
}

int cw_from_handle(cw_client *client, const void *bytes, uint64_t size_bytes, uint32_t flags,
                   cw_array **out) {
    struct cw_handle_read read;
    if (!out)
        return cw_needs("a place for the array");
    int code = cw_handle_accept(client, bytes, size_bytes, &read);
    if (code)
        return code;
    if (read.info.tree_version)
        return cw_fail(-EPROTO, "this handle leads to a tree: open it by cw_tree_from_handle()");
    const cw_layout layout = {.ndim = read.shape.ndim,
                              .itemsize = read.shape.itemsize,
                              .shape = read.shape.shape,
                              .strides = read.shape.strides,
                              .dtype = read.shape.dtype};
    code = cw_array_open(client, &read.info.handle, &layout, flags | read.info.flags, out);
    return code == -ESTALE ? cw_handle_gone(client, &read.info) : code;
}
