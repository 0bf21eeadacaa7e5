/*
 * What ls and stat say of a name as JSON: one structure for both. null: the name's node does not
 * tell it, or (shape, dtype) who put it wrote no description of an array.
 */
#include "tools/names.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"
#include "tools/output.h"

char *names_node(const char *name) {
    size_t length = 0;
    if (strncmp(name, "//", 2) == 0)
        length = 2 + strcspn(name + 2, "/");
    char *node = malloc(length + 2);
    CW_ASSERT(node);
    memcpy(node, name, length);
    strcpy(node + length, length ? "/" : "");
    return node;
}

static json_t *number_if(bool told, uint64_t number) {
    return told ? json_integer((json_int_t)number) : json_null();
}

json_t *names_json(const char *name, const cw_name_info *info, const char *name_space, bool held) {
    bool here = *info->device;
    bool known = *info->dtype; /* else its description cannot be read */
    json_t *shape = known ? json_array() : json_null();
    for (uint32_t i = 0; i < info->ndim && i < CW_NDIM_MAX; i++)
        json_array_append_new(shape, json_integer(info->shape[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:I, s:f, s:b, "
        "s:b}",
        "name", output_json_text(name), "namespace", output_json_text(name_space), "device",
        here ? output_json_text(info->device) : json_null(), "device_uuid",
        *info->device_uuid ? output_json_text(info->device_uuid) : json_null(), "shape", shape,
        "dtype", known ? output_json_text(info->dtype) : json_null(), "bytes",
        (json_int_t)info->nbytes, "owner_pid", number_if(here, info->owner_pid), "holders",
        number_if(here && held, info->holders), "references",
        number_if(here && held, info->references), "slab", number_if(here, info->slab),
        "created_ns", (json_int_t)info->created_ns, "age_seconds",
        output_age_seconds(info->created_ns), "keep", info->keep != 0, "tied", info->tied != 0);
}
