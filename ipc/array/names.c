/*
 * Names: put, get, wait, remove, list. Reading a name asks nobody: the directory is shared memory
 * that the broker writes. A record that is found names a block; the lease is taken after that, and
 * if the block went meanwhile (the name was replaced), the name is looked up again. Changing a name
 * is a request over the channel. What a record says was written by another client: it is checked.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/array/names.h"
#include "ipc/array/remote_name.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/request/channel.h"
#include "ipc/request/socket.h"

#define GET_TRIES 1000u /* names replaced under us, one after the other */

_Static_assert(CW_NAMESPACE_MAX + 1 + CW_NAME_MAX + 1 <= CW_KEY_MAX, "a key fits");

int cw_name_key_make(cw_client *client, const char *name, struct cw_name_key *key) {
    int code = client ? cw_client_usable(client) : cw_needs("a client");
    if (code || (code = cw_name_check(name)) != 0)
        return code;
    size_t space = strlen(client->name_space) + 1, length = strlen(name);
    memcpy(key->text, client->name_space, space);
    memcpy(key->text + space, name, length);
    key->length = (uint32_t)(space + length);
    return 0;
}

static int find(cw_client *client, const char *name, const struct cw_name_key *key) {
    int code = cw_name_key_find(client, key, &(struct cw_found){0});
    return code == -ENOENT ? cw_no_such_name(client, name) : code;
}

/* One look at a key and the array behind it. The lock is held. */
static int attach(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                  struct cw_found *found, cw_array **out) {
    struct cw_shape shape;
    const struct cw_entry *at = &found->entry;
    int code = cw_directory_find(&client->directory, key->text, key->length, found);
    int space = (int)strlen(key->text) + 1; /* the name stands behind the namespace */
    bool tree = code == 0 &&
                (at->flags & CW_ENTRY_TREE || cw_meta_is_remote_tree(found->meta, at->meta_bytes));
    if (tree && !(flags & CW_INDEX))
        return cw_fail(-EISDIR, "\"%.*s\" is a tree, not an array: get it as a tree",
                       (int)key->length - space, key->text + space);
    if (tree)
        cw_shape_bytes(at->size_bytes, &shape);
    else if (code == 0)
        code = cw_meta_decode(found->meta, at->meta_bytes, at->size_bytes, &shape);
    if (code == 0)
        code = cw_array_attach(client, at->slab, at->block, at->gen, at->offset_bytes,
                               at->size_bytes, &shape, flags & ~CW_INDEX, out);
    return code;
}

int cw_name_key_get(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                    struct cw_found *found, cw_array **out) {
    int code = -ESTALE;
    pthread_mutex_lock(&client->lock);
    for (unsigned tries = 0; tries < GET_TRIES && code == -ESTALE; tries++) {
        if (tries)
            sched_yield();
        code = attach(client, key, flags, found, out);
    }
    pthread_mutex_unlock(&client->lock);
    return code == -ECONNRESET ? cw_client_lost(client) : code;
}

int cw_name_key_find(cw_client *client, const struct cw_name_key *key, struct cw_found *found) {
    pthread_mutex_lock(&client->lock);
    int code = cw_directory_find(&client->directory, key->text, key->length, found);
    pthread_mutex_unlock(&client->lock);
    return code == -ECONNRESET ? cw_client_lost(client) : code;
}

static int get(cw_client *client, const char *name, uint32_t flags, int64_t timeout_ns,
               cw_array **out) {
    struct cw_name_key key;
    struct cw_found found;
    if (!out)
        return cw_fail(-EINVAL, "a place for the array is needed, NULL was given");
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    struct cw_trace_span span;
    bool remote = cw_remote_name(name);
    cw_name_span(&span, CW_TRACE_GET, &key, 0);
    code = remote ? cw_remote_get(client, &key, flags, timeout_ns, out)
                  : cw_name_key_get(client, &key, flags, &found, out);
    cw_trace_leave(&span, code < 0);
    if (remote)
        return code == -ELOOP ? get(client, cw_remote_local(name), flags, timeout_ns, out) : code;
    return code == -ENOENT ? cw_no_such_name(client, name) : code;
}

int cw_open_flags_check(const char *function, uint32_t flags) {
    if (flags & ~(uint32_t)(CW_READONLY | CW_PRIVATE))
        return cw_fail(-EINVAL, "flags 0x%x: %s knows CW_READONLY and CW_PRIVATE", flags, function);
    if ((flags & (CW_READONLY | CW_PRIVATE)) == (CW_READONLY | CW_PRIVATE))
        return cw_fail(-EINVAL, "CW_READONLY and CW_PRIVATE exclude each other, since a private "
                                "array is writable: give one of them");
    return 0;
}

int cw_get(cw_client *client, const char *name, uint32_t flags, cw_array **out) {
    int code = cw_open_flags_check("cw_get", flags);
    return code ? code : get(client, name, flags, -1, out);
}

int cw_get_within(cw_client *client, const char *name, uint32_t flags, int64_t timeout_ns,
                  cw_array **out) {
    int code = cw_open_flags_check("cw_get_within", flags);
    if (code)
        return code;
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1);
    code = get(client, name, flags, timeout_ns, out);
    cw_socket_unlimit(before);
    return code;
}

/* A copy on a device; of one that lies there, itself. Ends the caller's hold on the array. */
static int bring(cw_client *client, cw_array *array, const char *device, cw_array **out) {
    cw_layout layout;
    cw_array *copy;
    if (strcmp(cw_array_device(array), device) == 0) {
        *out = array;
        return 0;
    }
    cw_array_layout(array, &layout);
    int code = cw_array_new(client, device, &layout, 0, &copy);
    if (code == 0) {
        code = cw_array_copy(copy, 0, array, 0, cw_array_nbytes(array), NULL);
        if (code)
            cw_array_close(copy);
        else
            *out = copy;
    }
    cw_array_close(array);
    return code;
}

int cw_get_at(cw_client *client, const char *name, const char *device, uint32_t flags,
              int64_t timeout_ns, cw_array **out) {
    struct cw_name_key key;
    int code = cw_open_flags_check("cw_get_at", flags);
    if (code == 0 && (!out || !device))
        code = cw_fail(-EINVAL, "a device and a place for the array are needed, NULL was given");
    if (code == 0)
        code = cw_name_key_make(client, name, &key);
    if (code == 0 && !cw_remote_name(name))
        code = cw_fail(
            -EINVAL, "\"%s\" is an array of this node: open it without a device, and copy it to %s",
            name, device);
    if (code)
        return code;
    code = cw_remote_get_on(client, &key, device, flags, timeout_ns, out);
    if (code != -ELOOP)
        return code;
    cw_array *here;
    code = get(client, cw_remote_local(name), flags, timeout_ns, &here);
    return code ? code : bring(client, here, device, out);
}

int cw_get_unmapped(cw_client *client, const char *name, cw_array **out) {
    return get(client, name, CW_UNMAPPED, -1, out);
}

/* The layout to be put, and where its lowest byte lies within the array. */
int cw_put_view(const cw_array *array, const cw_layout *layout, uint64_t offset_bytes,
                struct cw_shape *shape, uint64_t *low_bytes) {
    cw_layout own;
    if (!layout) {
        if (offset_bytes)
            return cw_fail(-EINVAL, "an offset needs a layout: give the layout of the part");
        cw_array_layout(array, &own);
    }
    int code = cw_layout_resolve(layout ? layout : &own, shape);
    if (code)
        return code;
    uint64_t element = layout ? offset_bytes : shape->origin_bytes;
    if (element < shape->origin_bytes || element - shape->origin_bytes > array->size_bytes ||
        shape->span_bytes > array->size_bytes - (element - shape->origin_bytes))
        return cw_fail(-EINVAL,
                       "a view of %llu bytes with element 0 at %llu (and %llu bytes below it) does "
                       "not lie in an array of %llu",
                       (unsigned long long)shape->span_bytes, (unsigned long long)element,
                       (unsigned long long)shape->origin_bytes,
                       (unsigned long long)array->size_bytes);
    *low_bytes = element - shape->origin_bytes;
    return 0;
}

int cw_name_key_put_form(cw_array *array, const struct cw_name_key *key, uint32_t flags,
                         const cw_layout *layout, uint64_t offset_bytes, struct cw_put *put,
                         uint8_t *meta) {
    struct cw_shape shape;
    uint64_t low_bytes = 0;
    int code = cw_put_view(array, layout, offset_bytes, &shape, &low_bytes);
    if (code)
        return code;
    cw_client *client = array->client;
    *put = (struct cw_put){.slab = array->slab->id,
                           .block = array->block,
                           .gen = array->gen,
                           .offset_bytes = array->offset_bytes + low_bytes,
                           .size_bytes = shape.span_bytes,
                           .flags = cw_put_flags_of(flags),
                           .key_bytes = (uint16_t)key->length,
                           .meta_bytes = (uint16_t)cw_meta_encode(&shape, meta)};
    pthread_mutex_lock(&client->lock);
    struct cw_extent *extent = array->slab->locals[array->block].extent;
    if (extent)
        extent->published = true;
    pthread_mutex_unlock(&client->lock);
    return 0;
}

void cw_name_key_replaced(cw_client *client) {
    pthread_mutex_lock(&client->lock);
    cw_heap_collect(client, false);
    pthread_mutex_unlock(&client->lock);
}

int cw_name_key_put(cw_array *array, const struct cw_name_key *key, uint32_t flags,
                    const cw_layout *layout, uint64_t offset_bytes) {
    struct cw_put put;
    uint8_t meta[CW_META_BYTES_MAX];
    int code = cw_name_key_put_form(array, key, flags, layout, offset_bytes, &put, meta);
    if (code)
        return code;
    cw_client *client = array->client;
    struct iovec parts[] = {
        {&put, sizeof put}, {(void *)(uintptr_t)key->text, key->length}, {meta, put.meta_bytes}};
    struct cw_trace_span span;
    cw_name_span(&span, CW_TRACE_REQUEST, key, put.size_bytes);
    code = cw_channel_call(client, CW_OP_PUT, parts, 3, NULL, NULL, CW_CALL_DEED, -1);
    cw_trace_leave(&span, code < 0);
    if (code == 0)
        cw_name_key_replaced(client);
    return code;
}

static int put(cw_array *array, const char *name, int gpu, uint32_t flags, const cw_layout *layout,
               uint64_t offset_bytes);

/* Under a name of this node that was said as "//NODE/NAME", on the device that was said with it. */
static int put_here(cw_array *array, const char *name, int gpu, uint32_t flags,
                    const cw_layout *layout, uint64_t offset_bytes) {
    char device[16];
    cw_array *there;
    snprintf(device, sizeof device, gpu < 0 ? "cpu" : "cuda:%d", gpu);
    if (gpu < 0 || strcmp(cw_array_device(array), device) == 0)
        return put(array, name, -1, flags, layout, offset_bytes);
    if (layout || offset_bytes)
        return cw_fail(-EINVAL, "a part of an array cannot be put onto %s here: put a copy of it",
                       device);
    cw_layout whole;
    cw_array_layout(array, &whole);
    int code = cw_array_new(array->client, device, &whole, 0, &there);
    if (code)
        return code;
    code = cw_array_copy(there, 0, array, 0, cw_array_nbytes(array), NULL);
    if (code == 0)
        code = cw_array_put(there, name, flags, NULL, 0);
    cw_array_close(there);
    return code;
}

/* gpu: of the other node whose name it is, -1 none. */
static int put(cw_array *array, const char *name, int gpu, uint32_t flags, const cw_layout *layout,
               uint64_t offset_bytes) {
    struct cw_name_key key;
    if (flags & ~(uint32_t)(CW_REPLACE | CW_KEEP | CW_TIED | CW_REMOTE_READ | CW_SEAL))
        return cw_fail(-EINVAL,
                       "flags 0x%x: cw_array_put knows CW_REPLACE, CW_KEEP, CW_TIED, "
                       "CW_REMOTE_READ and CW_SEAL",
                       flags);
    int code = cw_put_flags_check(flags);
    if (code == 0)
        code = cw_array_usable(array);
    if (code == 0 && array->cow.base)
        code = cw_fail(-EINVAL, "a private array cannot be named, since others would not see what "
                                "is written to it: copy it, and name the copy");
    if (code == 0)
        code = cw_name_key_make(array->client, name, &key);
    if (code)
        return code;
    if (cw_remote_name(name)) {
        bool own = flags & (CW_TIED | CW_SEAL) && cw_name_is_here(array->client, name) == 1;
        code = own ? -ELOOP : cw_remote_put(array, &key, gpu, flags, layout, offset_bytes);
        return code == -ELOOP
                   ? put_here(array, cw_remote_local(name), gpu, flags, layout, offset_bytes)
                   : code;
    }
    if (gpu >= 0)
        return cw_fail(-EINVAL,
                       "\"%s\" is a name of this node: the array is named where it lies; copy it "
                       "to cuda:%d and name the copy",
                       name, gpu);
    if (flags & CW_SEAL)
        cw_array_freeze(array);
    return cw_name_key_put(array, &key, flags, layout, offset_bytes);
}

int cw_array_put(cw_array *array, const char *name, uint32_t flags, const cw_layout *layout,
                 uint64_t offset_bytes) {
    int code = cw_array_pin(array); /* once others may know of it, it stays */
    if (code)
        return code;
    code = put(array, name, -1, flags, layout, offset_bytes);
    cw_array_unpin(array);
    return code;
}

int cw_array_put_weak(cw_array *array, const char *name) {
    struct cw_name_key key;
    int code = cw_array_pin(array);
    if (code)
        return code;
    code = cw_name_key_make(array->client, name, &key);
    if (code == 0)
        code = cw_name_key_put(array, &key, CW_WEAK, NULL, 0);
    cw_array_unpin(array);
    return code;
}

int cw_array_put_at(cw_array *array, const char *name, const char *device, uint32_t flags,
                    const cw_layout *layout, uint64_t offset_bytes) {
    int gpu;
    if (!array || !name || !device)
        return cw_needs("an array, a name and a device");
    int code = cw_remote_gpu(device, &gpu);
    if (code == 0)
        code = cw_array_pin(array);
    if (code)
        return code;
    code = put(array, name, gpu, flags, layout, offset_bytes);
    cw_array_unpin(array);
    return code;
}

/* A request that names a key alone. */
static int key_call(cw_client *client, uint16_t op, const struct cw_name_key *key,
                    enum cw_call_mode mode, int64_t timeout_ns) {
    struct cw_key body = {.key_bytes = key->length};
    struct iovec parts[] = {{&body, sizeof body}, {(void *)(uintptr_t)key->text, key->length}};
    struct cw_trace_span span;
    cw_name_span(&span, CW_TRACE_REQUEST, key, 0);
    int code = cw_channel_call(client, op, parts, 2, NULL, NULL, mode, timeout_ns);
    cw_trace_leave(&span, code < 0);
    return code;
}

static int await_name(cw_client *client, const char *name, int64_t timeout_ns) {
    struct cw_name_key key;
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    code = cw_remote_name(name) ? cw_remote_stands(client, &key) : find(client, name, &key);
    if (code != -ENOENT)
        return code;
    if (timeout_ns == 0)
        return cw_fail(-ETIMEDOUT, "no array has the name \"%s\"", name);
    if (cw_remote_name(name))
        code = cw_remote_call(client, CW_REMOTE_WAIT, &key, timeout_ns);
    else
        code = key_call(client, CW_OP_WAIT, &key, CW_CALL_LOOK, timeout_ns);
    if (code == -ELOOP)
        return await_name(client, cw_remote_local(name), timeout_ns);
    if (code == -ETIMEDOUT)
        return cw_fail(code, "the name \"%s\" did not come in %.3f s", name,
                       (double)timeout_ns / 1e9);
    return code;
}

int cw_wait(cw_client *client, const char *name, int64_t timeout_ns) {
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1); /* 0: who only looks may ask */
    int code = await_name(client, name, timeout_ns);
    cw_socket_unlimit(before);
    return code;
}

int cw_name_key_remove(cw_client *client, const struct cw_name_key *key) {
    return key_call(client, CW_OP_REMOVE, key, CW_CALL_DEED, -1);
}

int cw_remove(cw_client *client, const char *name) {
    struct cw_name_key key;
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    if (cw_remote_name(name)) {
        code = cw_remote_call(client, CW_REMOTE_REMOVE, &key, -1);
        return code == -ELOOP ? cw_remove(client, cw_remote_local(name)) : code;
    }
    code = cw_name_key_remove(client, &key);
    return code == -ENOENT ? cw_no_such_name(client, name) : code;
}

struct list {
    char *text;
    size_t used, room;
    uint64_t count;
};

static int list_add(struct list *list, const char *name, size_t length) {
    if (list->room - list->used < length + 1) {
        size_t room = 2 * list->room + length + 256;
        char *grown = realloc(list->text, room);
        if (!grown)
            return cw_fail(-EDQUOT, "no memory for a list of %llu names",
                           (unsigned long long)list->count);
        list->text = grown;
        list->room = room;
    }
    memcpy(list->text + list->used, name, length);
    list->text[list->used + length] = 0;
    list->used += length + 1;
    list->count++;
    return 0;
}

/* All names with this prefix. -EAGAIN: the directory was rebuilt meanwhile. The lock is held. */
static int list_names(cw_client *client, const struct cw_name_key *prefix, struct list *list) {
    struct cw_found found;
    uint64_t cursor = 0;
    size_t space = strlen(prefix->text) + 1;
    int code;
    list->used = list->count = 0;
    while ((code = cw_directory_next(&client->directory, &cursor, &found)) == 1) {
        size_t length = found.entry.key_bytes;
        if (length < prefix->length || length > CW_KEY_MAX ||
            memcmp(found.key, prefix->text, prefix->length) != 0)
            continue;
        if (found.key[space] == '/')
            continue; /* a replica, whose name is its owner's */
        code = list_add(list, found.key + space, length - space);
        if (code)
            return code;
    }
    return code == -ECONNRESET ? cw_client_lost(client) : code;
}

int cw_name_key_list(cw_client *client, const struct cw_name_key *prefix, char **names,
                     uint64_t *count) {
    struct list list = {.text = malloc(256), .room = 256};
    if (!list.text)
        return cw_fail(-EDQUOT, "no memory for a list of names");
    int code = -EAGAIN;
    pthread_mutex_lock(&client->lock);
    for (unsigned tries = 0; tries < GET_TRIES && code == -EAGAIN; tries++)
        code = list_names(client, prefix, &list);
    pthread_mutex_unlock(&client->lock);
    if (code) {
        free(list.text);
        return code;
    }
    *names = list.text;
    *count = list.count;
    return 0;
}

int cw_names(cw_client *client, const char *prefix, char **names, uint64_t *count) {
    struct cw_name_key key;
    if (!client || !names || !count)
        return cw_fail(-EINVAL, "a client and places for the list are needed, NULL was given");
    int code = cw_client_usable(client);
    if (code)
        return code;
    size_t space = strlen(client->name_space) + 1, length = prefix ? strlen(prefix) : 0;
    bool remote = prefix && cw_remote_name(prefix);
    if (remote && (code = cw_remote_prefix_check(prefix)) != 0)
        return code;
    if (length > CW_NAME_MAX && !remote)
        length = CW_NAME_MAX + 1; /* no name begins with so much */
    if (length >= CW_KEY_MAX - space)
        return cw_fail(-EINVAL, "no name begins with %zu bytes", length);
    memcpy(key.text, client->name_space, space);
    if (length)
        memcpy(key.text + space, prefix, length);
    if (remote && !strchr(prefix + 2, '/'))
        key.text[space + length++] = '/'; /* all names of that node */
    key.length = (uint32_t)(space + length);
    if (!remote)
        return cw_name_key_list(client, &key, names, count);
    code = cw_remote_names(client, &key, names, count);
    return code == -ELOOP ? cw_names(client, cw_remote_local(prefix), names, count) : code;
}

void cw_free(void *memory) {
    free(memory);
}
