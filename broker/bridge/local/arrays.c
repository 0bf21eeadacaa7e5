/*
 * Memory and names of this node: see arrays.h. A helper thread does what may take long (a slab of
 * gigabytes is allocated in full, at about 1 s/GiB); libcableway may be called from any thread.
 *
 * The reserve: an array that nobody uses, of as many bytes as may come with the answer to an OPEN,
 * given up when there is no other memory at hand: what comes then finds its place at once. A helper
 * makes the next, and touches its pages, so that who reads into it does not stop at each. Where
 * there is no memory for one, the array is made as any other, and its bytes are asked for then.
 *
 * What is free again stays for the next array (ipc/memory/slab_cache.h), which then needs no new
 * pages, until no large one was made for TRIM_NS. That it is free this process does not hear, since
 * others have it: it looks every TRIM_NS, as long as it has more than the reserve.
 */
#include "broker/bridge/local/arrays.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/request/channel.h"

#define CLOSE_BYTES   (8u << 20) /* to give so much back takes the kernel a millisecond */
#define RESERVE_BYTES (CWB_AHEAD_MAX * CWB_READ_MAX)
#define TRIM_NS       10000000000

/* here: in memory that there is, else -EAGAIN. */
static int make_bytes(cw_client *client, uint64_t size_bytes, bool here, cw_array **out) {
    int64_t length = (int64_t)size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    return here ? cw_array_new_here(client, &layout, out)
                : cw_array_new(client, "cpu", &layout, 0, out);
}

int cwb_local_make(struct cwb_bridge *bridge, uint64_t size_bytes, cw_array **out) {
    return make_bytes(bridge->client, size_bytes, false, out);
}

/* ---- names ---- */

struct mapping {
    struct cwb_work work;
    struct cwb_bridge *bridge;
    struct cw_name_key key; /* length 0: none */
    cw_array *array;
    cwb_on_mapped *on_done; /* NULL: nobody waits for it */
    void *owner;
};

static void run_mapping(struct cwb_work *work) {
    struct mapping *m = (struct mapping *)work;
    cw_client *client = m->bridge->client;
    struct cw_found found;
    bool on_gpu;
    pthread_mutex_lock(&client->lock);
    int code = cw_directory_map(&client->directory);
    pthread_mutex_unlock(&client->lock);
    if (code == 0 && m->key.length)
        code = cwb_local_open(m->bridge, &m->key, &found, &m->array, &on_gpu);
    cwb_work_set(work, code == -ENOENT || code == -ESTALE ? 0 : code); /* who looks finds it so */
}

static void on_mapped(struct cwb_work *work) {
    struct mapping *m = (struct mapping *)work;
    if (work->code)
        cw_fail(work->code, "%s", work->detail);
    if (m->on_done)
        m->on_done(m->owner, work->code);
    else
        m->bridge->mapping = false;
    cw_array_close(m->array);
    free(m);
}

void cwb_local_map(struct cwb_bridge *bridge, const struct cw_name_key *key, cwb_on_mapped *on_done,
                   void *owner) {
    struct mapping *m = calloc(1, sizeof *m);
    if (!m) {
        int code = cwb_no_memory("what this node's broker is asked");
        bridge->mapping = bridge->mapping && on_done;
        if (on_done)
            on_done(owner, code);
        return;
    }
    *m = (struct mapping){.work = {.run = run_mapping, .done = on_mapped},
                          .bridge = bridge,
                          .on_done = on_done,
                          .owner = owner};
    if (key)
        m->key = *key;
    cwb_work_begin(bridge->broker_helpers, &m->work);
}

bool cwb_local_mapped(struct cwb_bridge *bridge) {
    pthread_mutex_lock(&bridge->client->lock);
    bool mapped = cw_directory_mapped(&bridge->client->directory);
    pthread_mutex_unlock(&bridge->client->lock);
    return mapped;
}

int cwb_local_find(struct cwb_bridge *bridge, const struct cw_name_key *key,
                   struct cw_found *found) {
    int code = cw_name_key_find(bridge->client, key, found);
    if (code == CW_WOULD_WAIT && !bridge->mapping) {
        bridge->mapping = true;
        cwb_local_map(bridge, NULL, NULL, NULL);
    }
    return code;
}

static bool lies_on_gpu(const cw_array *array) {
    return array->slab->device_kind == CW_DEVICE_CUDA;
}

/* Arrays on a GPU are not mapped by this client, whatever flags say (cw_client.host_only). */
int cwb_local_open(struct cwb_bridge *bridge, const struct cw_name_key *key, struct cw_found *found,
                   cw_array **out, bool *on_gpu) {
    int code = cw_name_key_get(bridge->client, key, CW_READONLY | CW_INDEX, found, out);
    *on_gpu = code == 0 && lies_on_gpu(*out);
    return code;
}

int cwb_local_open_at(struct cwb_bridge *bridge, const struct cw_remote *remote, cw_array **out,
                      bool *on_gpu) {
    cw_client *client = bridge->client;
    int64_t length = (int64_t)remote->size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    if (remote->instance != cw_client_instance(client))
        return cw_fail(-ESTALE, "the array belongs to another run of the broker");
    int code = cw_layout_resolve(&layout, &shape);
    pthread_mutex_lock(&client->lock);
    if (code == 0)
        code = cw_array_attach(client, remote->slab, remote->block, remote->gen,
                               remote->offset_bytes, remote->size_bytes, &shape, CW_READONLY, out);
    pthread_mutex_unlock(&client->lock);
    *on_gpu = code == 0 && lies_on_gpu(*out);
    return code;
}

int cwb_local_hold(cw_array *array, cw_array **out) {
    cw_client *client = array->client;
    int64_t length = (int64_t)array->size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    int code = cw_layout_resolve(&layout, &shape);
    pthread_mutex_lock(&client->lock);
    if (code == 0)
        code = cw_array_attach(client, array->slab->id, array->block, array->gen,
                               array->offset_bytes, array->size_bytes, &shape, 0, out);
    pthread_mutex_unlock(&client->lock);
    return code;
}

bool cwb_local_written(const cw_array *array, uint64_t *writes) {
    struct cw_order *order = cw_order_of(array->slab->table, array->block);
    if (cw_order_turn(order))
        return false;
    *writes = cw_order_writes(order);
    return true;
}

struct closing {
    struct cwb_work work;
    cw_array *array;
};

static void run_closing(struct cwb_work *work) {
    cw_array_close(((struct closing *)work)->array);
}

static void closed(struct cwb_work *work) {
    free(work);
}

void cwb_local_close(struct cwb_bridge *bridge, cw_array *array) {
    struct closing *closing = NULL;
    if (array && array->size_bytes > CLOSE_BYTES)
        closing = calloc(1, sizeof *closing);
    if (!closing) {
        cw_array_close(array);
        return;
    }
    *closing = (struct closing){.work = {.run = run_closing, .done = closed}, .array = array};
    cwb_work_begin(bridge->helpers, &closing->work);
}

struct making {
    struct cwb_work work;
    cw_client *client;
    uint64_t size_bytes;
    cw_array *array;
    cwb_on_array *on_done;
    void *owner;
};

static void run_making(struct cwb_work *work) {
    struct making *m = (struct making *)work;
    cwb_work_set(work, make_bytes(m->client, m->size_bytes, false, &m->array));
}

static void made(struct cwb_work *work) {
    struct making *m = (struct making *)work;
    if (work->code)
        cw_fail(work->code, "%s", work->detail);
    m->on_done(m->owner, work->code, m->array);
    free(m);
}

static void run_reserving(struct cwb_work *work) {
    struct making *m = (struct making *)work;
    int code = make_bytes(m->client, m->size_bytes, false, &m->array);
    if (code == 0)
        memset(cw_array_lowest(m->array), 0, m->size_bytes);
    cwb_work_set(work, code);
}

static void reserved(struct cwb_work *work) {
    struct making *m = (struct making *)work;
    struct cwb_bridge *bridge = m->owner;
    bridge->reserving = false;
    bridge->reserve = work->code ? NULL : m->array;
    free(m);
}

void cwb_local_reserve(struct cwb_bridge *bridge) {
    if (bridge->reserving || bridge->reserve)
        return;
    struct making *m = calloc(1, sizeof *m);
    if (!m)
        return; /* what comes next finds other memory, or tries this again */
    *m = (struct making){.work = {.run = run_reserving, .done = reserved},
                         .client = bridge->client,
                         .size_bytes = RESERVE_BYTES,
                         .owner = bridge};
    bridge->reserving = true;
    cwb_work_begin(bridge->memory_helpers, &m->work);
}

/* From memory that there is, the reserve included; else -EAGAIN. */
static int make_here(struct cwb_bridge *bridge, uint64_t size_bytes, cw_array **out) {
    int code = make_bytes(bridge->client, size_bytes, true, out);
    if (code != -EAGAIN || size_bytes > RESERVE_BYTES)
        return code;
    if (bridge->reserve) {
        cw_array_close(bridge->reserve);
        bridge->reserve = NULL;
        code = make_bytes(bridge->client, size_bytes, true, out);
    }
    cwb_local_reserve(bridge);
    return code;
}

/* ---- what is kept free ---- */

struct trimming {
    struct cwb_work work;
    struct cwb_bridge *bridge;
    bool again; /* it still has more than the reserve */
};

static void run_trimming(struct cwb_work *work) {
    struct trimming *trimming = (struct trimming *)work;
    cw_client *client = trimming->bridge->client;
    uint64_t waiting, own_bytes = 0;
    (void)cw_trim(client, 0, &waiting);
    pthread_mutex_lock(&client->lock);
    for (const struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next)
        own_bytes += slab->size_bytes;
    pthread_mutex_unlock(&client->lock);
    trimming->again = own_bytes > RESERVE_BYTES;
}

static void trimmed(struct cwb_work *work) {
    struct trimming *trimming = (struct trimming *)work;
    struct cwb_bridge *bridge = trimming->bridge;
    bridge->trimming = false;
    if (trimming->again && !bridge->trim_due_ns)
        bridge->trim_due_ns = bridge->loop.now_ns + TRIM_NS;
    bridge->tick_now = true;
    free(trimming);
}

int64_t cwb_local_tick(struct cwb_bridge *bridge) {
    const int64_t now_ns = bridge->loop.now_ns;
    if (!bridge->trim_due_ns || bridge->trimming)
        return INT64_MAX;
    if (now_ns < bridge->trim_due_ns)
        return bridge->trim_due_ns;
    struct trimming *trimming = calloc(1, sizeof *trimming);
    bridge->trim_due_ns = trimming ? 0 : now_ns + TRIM_NS; /* without memory later */
    if (!trimming)
        return bridge->trim_due_ns;
    *trimming = (struct trimming){.work = {.run = run_trimming, .done = trimmed}, .bridge = bridge};
    bridge->trimming = true;
    cwb_work_begin(bridge->memory_helpers, &trimming->work);
    return INT64_MAX;
}

void cwb_local_new(struct cwb_bridge *bridge, uint64_t size_bytes, cwb_on_array *on_done,
                   void *owner) {
    cw_array *array = NULL;
    bridge->trim_due_ns = bridge->loop.now_ns + TRIM_NS;
    int code = make_here(bridge, size_bytes, &array);
    if (code != -EAGAIN) { /* as a rule, and no thread is woken */
        on_done(owner, code, array);
        return;
    }
    struct making *m = calloc(1, sizeof *m);
    if (!m) {
        on_done(owner, cwb_no_memory("an array of another node"), NULL);
        return;
    }
    *m = (struct making){.work = {.run = run_making, .done = made},
                         .client = bridge->client,
                         .size_bytes = size_bytes,
                         .on_done = on_done,
                         .owner = owner};
    cwb_work_begin(bridge->memory_helpers, &m->work);
}
