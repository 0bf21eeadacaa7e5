/*
 * Names, seen from outside: see names.h. Where an array lies is told by its slab's block table.
 */
#include "tools/watch/names.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/name_key.h"
#include "tools/watch/memory.h"

struct walk {
    names_each *each;
    void *context;
    struct memory_slab *slabs;
    size_t count;
    cw_name_info info;
};

static int by_number(const void *key, const void *element) {
    uint32_t number = *(const uint32_t *)key, other = ((const struct memory_slab *)element)->slab;
    return (number > other) - (number < other);
}

static void find_device(const struct walk *walk, cw_name_info *info) {
    const struct memory_slab *slab =
        walk->count ? bsearch(&info->slab, walk->slabs, walk->count, sizeof *slab, by_number)
                    : NULL;
    if (*info->device || !slab)
        return;
    strcpy(info->device, slab->gpu ? "cuda" : "cpu");
    if (slab->gpu)
        strcpy(info->device_uuid, slab->device);
}

static int tell(void *context, const char *name_space, const char *name,
                const struct cw_found *found) {
    struct walk *walk = context;
    if (strlen(name) >= sizeof walk->info.name)
        return 0; /* no name of ours */
    cw_name_describe(name, found, &walk->info);
    if (strcmp(walk->info.dtype, "tree") != 0)
        find_device(walk, &walk->info);
    return walk->each(walk->context, name_space, &walk->info);
}

int names_walk(struct monitor *monitor, const char *name_space, const char *prefix,
               names_each *each, void *context) {
    struct walk walk = {.each = each, .context = context};
    int code = memory_slabs(monitor, &walk.slabs, &walk.count);
    if (code)
        return code;
    code = monitor_names(monitor, name_space, prefix, tell, &walk);
    free(walk.slabs);
    return code;
}
