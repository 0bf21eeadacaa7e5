/*
 * What ls and stat say of a name as JSON: one structure for both.
 */
#include "tools/names.h"

#include "tools/output.h"

json_t *names_json(const cw_name_info *info, const char *name_space) {
    json_t *shape = json_array();
    for (uint32_t i = 0; i < info->ndim && i < CW_NDIM_MAX; i++)
        json_array_append_new(shape, json_integer(info->shape[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b}",
                     "name", output_json_text(info->name), "namespace",
                     output_json_text(name_space), "device", output_json_text(info->device),
                     "device_uuid",
                     *info->device_uuid ? output_json_text(info->device_uuid) : json_null(),
                     "shape", shape, "dtype", output_json_text(info->dtype), "bytes",
                     (json_int_t)info->nbytes, "owner_pid", (json_int_t)info->owner_pid, "holders",
                     (json_int_t)info->holders, "references", (json_int_t)info->references, "slab",
                     (json_int_t)info->slab, "created_ns", (json_int_t)info->created_ns,
                     "age_seconds", output_age_seconds(info->created_ns), "keep", info->keep != 0);
}
