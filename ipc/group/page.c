/*
 * The page and its name: found or made, and taken away. What its words mean is in page.h.
 */
#include <stdio.h>

#include "ipc/array/array.h"
#include "ipc/array/names.h"
#include "ipc/client.h"
#include "ipc/group/page.h"
#include "shm/base/error.h"
#include "shm/base/task.h"

static int key_of(const struct cw_group *group, char key[CW_NAME_MAX + 1]) {
    int length = snprintf(key, CW_NAME_MAX + 1, GROUP_PREFIX "%s", group->name);
    return length <= CW_NAME_MAX ? 0 : -EINVAL;
}

static int page_check(cw_array *array) {
    const struct group_page *page = cw_array_data(array);
    if (cw_array_gpu(array) >= 0 || cw_array_nbytes(array) != sizeof *page ||
        cw_array_readonly(array) || (uintptr_t)page % 64 || page->magic != GROUP_MAGIC)
        return cw_fail(-EPROTO,
                       "the array of %llu bytes under that name is no group of this version: "
                       "remove it, or choose another name",
                       (unsigned long long)cw_array_nbytes(array));
    if (page->world != cw_task_world())
        return cw_fail(-EPERM, "the group was made in another pid or time namespace, whose "
                               "processes cannot be watched from here: use it in one container "
                               "only");
    return 0;
}

static int page_make(cw_client *client, cw_array **out) {
    int64_t bytes = sizeof(struct group_page);
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &bytes, .dtype = "|u1"};
    int code = cw_array_new(client, "cpu", &layout, CW_ZERO, out);
    if (code)
        return code;
    struct group_page *page = cw_array_data(*out);
    page->world = cw_task_world();
    page->magic = GROUP_MAGIC;
    return 0;
}

/* The page under the group's name, made where there is none. */
int cw_group_page_open(cw_group *group) {
    char key[CW_NAME_MAX + 1];
    cw_array *array;
    int code = key_of(group, key);
    while (code == 0) {
        code = cw_get(group->client, key, 0, &array);
        if (code == -ESTALE)
            return -EAGAIN; /* its last member ended just now, and the name is about to go */
        if (code == 0)
            code = page_check(array);
        else if (code == -ENOENT) {
            code = page_make(group->client, &array);
            if (code)
                return code;
            code = cw_array_put_weak(array, key);
            if (code == -EEXIST) {
                cw_array_close(array);
                code = 0;
                continue; /* somebody else's */
            }
        } else
            return code;
        if (code) {
            cw_array_close(array);
            return code;
        }
        group->array = array;
        group->page = cw_array_data(array);
        return 0;
    }
    return code;
}

void cw_group_page_close(cw_group *group) {
    cw_array *array = group->array;
    group->array = NULL;
    group->page = NULL;
    group->own = NULL;
    cw_array_close(array);
}

static bool same_block(const cw_array *a, const cw_array *b) {
    return a->slab == b->slab && a->block == b->block && a->gen == b->gen;
}

/* Does the name still mean our page? Where nobody has the name, it is given to it. 0, -EAGAIN:
 * another page has it. */
int cw_group_page_named(cw_group *group) {
    char key[CW_NAME_MAX + 1];
    cw_array *array;
    int code = key_of(group, key);
    while (code == 0) {
        code = cw_get(group->client, key, 0, &array);
        if (code == 0) {
            bool same = same_block(array, group->array);
            cw_array_close(array);
            return same ? 0 : -EAGAIN;
        }
        if (code == -ESTALE)
            return -EAGAIN;
        if (code != -ENOENT)
            return code;
        code = cw_array_put_weak(group->array, key);
        if (code != -EEXIST)
            return code;
        code = 0; /* somebody took it just now: for this page, or for another? */
    }
    return code;
}

/* ---- who is there ---- */

uint64_t cw_group_claim(struct group_slot *slot) {
    return CW_LOAD(N10, &slot->claim, acquire);
}

bool cw_group_claim_free(uint64_t claim) {
    return claim == 0 || !cw_task_process_runs(claim);
}

/* The first slot, from one on, that somebody has who lives; CW_GROUP_RANKS_MAX: none. */
uint32_t cw_group_next_living(struct group_page *page, uint32_t from) {
    while (from < CW_GROUP_RANKS_MAX && cw_group_claim_free(cw_group_claim(&page->slots[from])))
        from++;
    return from;
}

struct group_state cw_group_state(const cw_group *group) {
    /* N13: acquire: the slots of those who were joined when it was stored (N14). */
    return group_state_of(CW_LOAD(N13, &group->page->state, acquire));
}

bool cw_group_state_swap(cw_group *group, struct group_state from, struct group_state to) {
    uint64_t word = group_state_word(from);
    /* N14: decides; release, for what the one who stores it has seen (N13). */
    return CW_CAS(N14, &group->page->state, &word, group_state_word(to), acq_rel);
}

void cw_group_page_unname(cw_group *group) {
    char key[CW_NAME_MAX + 1];
    cw_array *array;
    if (key_of(group, key) || cw_get(group->client, key, 0, &array))
        return;
    bool same = same_block(array, group->array);
    cw_array_close(array);
    if (same)
        cw_remove(group->client, key);
}
