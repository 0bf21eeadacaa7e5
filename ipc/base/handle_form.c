/*
 * The form of a handle as bytes: see handle_form.h. Pure functions.
 */
#include "ipc/base/handle_form.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/hash.h"
#include "ipc/base/meta.h"
#include "shm/base/error.h"

#define KIND_ARRAY 1u
#define KIND_TREE  2u

_Static_assert(sizeof(struct cw_handle_form) + CW_HANDLE_NODE_MAX + CW_HANDLE_ADDRESS_MAX +
                       CW_NAMESPACE_MAX + CW_META_BYTES_MAX + 8 <=
                   CW_HANDLE_BYTES_MAX,
               "layout");

_Static_assert(sizeof(((cw_handle_info *)0)->node) == CW_HANDLE_NODE_MAX + 1 &&
                   sizeof(((cw_handle_info *)0)->address) == CW_HANDLE_ADDRESS_MAX + 1 &&
                   sizeof(((cw_handle_info *)0)->name_space) == CW_NAMESPACE_MAX + 1,
               "texts");

uint32_t cw_handle_encode(const struct cw_handle_read *read, uint8_t *out) {
    const cw_handle_info *info = &read->info;
    struct cw_handle_form form = {.magic = CW_HANDLE_MAGIC,
                                  .version = CW_HANDLE_VERSION,
                                  .kind = info->tree_version ? KIND_TREE : KIND_ARRAY,
                                  .handle = info->handle,
                                  .openers = info->openers,
                                  .flags = info->flags,
                                  .made_ns = info->made_ns,
                                  .tree_version = info->tree_version,
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
    if (form->kind != (form->tree_version ? KIND_TREE : KIND_ARRAY))
        return cw_fail(-EPROTO, "malformed handle: kind %u, version %llu", form->kind,
                       (unsigned long long)form->tree_version);
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
    out->info = (cw_handle_info){.handle = form.handle,
                                 .made_ns = form.made_ns,
                                 .tree_version = form.tree_version,
                                 .openers = form.openers,
                                 .flags = form.flags};
    if (!take_text(&at, form.node_bytes, CW_HANDLE_NODE_MAX, out->info.node) ||
        !take_text(&at, form.address_bytes, CW_HANDLE_ADDRESS_MAX, out->info.address) ||
        !take_text(&at, form.name_space_bytes, CW_NAMESPACE_MAX, out->info.name_space))
        return cw_fail(-EPROTO, "malformed handle: a text in it is none, or too long");
    return cw_meta_decode(at, form.meta_bytes, form.handle.size_bytes, &out->shape);
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
