/*
 * A mount: all parts of a tree at fixed addresses of this process (fixed.h), where one version
 * follows another, goes and comes back, together.
 *
 *   mapped --unmap--> unmapped --map--> mapped         the lease stays
 *   mapped, unmapped --swap--> mapped                  the old version's lease goes
 *   mapped --park--> parked --unpark--> mapped         GPU memory's lease goes, a host copy stays
 *
 * Invariant: what may fail or wait is done first: leases on the new version, its memory, its form.
 * Then the parts are marked CHANGING, where nobody pins one, the GPUs are drained, and the memory
 * is exchanged part by part. If that fails, what was done is undone; if that fails, too, nothing is
 * mapped any more, and the sentence says so. Leases change hands last, all at once.
 *
 * What becomes of it when somebody dies:
 *   this process   its leases end, on both versions: what nobody else has comes back. Nobody else
 *                  sees anything of a mount
 *   the broker     before the new version's memory is here: -ECONNRESET, and nothing has changed.
 *                  Afterwards it is not needed: the exchange is done
 *   a publisher    nothing: memory is in the broker's custody
 * In a forked child host memory stays mapped as it was at the fork; calls here are refused.
 *
 * State: the parts', under client->lock. One change at a time: -EBUSY.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ipc/array/copy_bytes.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/order/context_failure.h"
#include "ipc/order/drain.h"
#include "ipc/tree/fixed.h"
#include "ipc/tree/own_slab.h"
#include "ipc/tree/tree.h"

struct cw_mount {
    cw_client *client; /* one reference */
    uint64_t version, layout_hash;
    bool parked;
    uint32_t count;
    struct cw_fixed **parts;
    struct cw_next *next; /* of each part what follows; empty between calls */
    cw_array **copies;    /* parked: of each part in GPU memory a host array */
};

/* ---- one change at a time ---- */

static int check_mount(const cw_mount *mount) {
    return !mount ? cw_needs("a mount")
           : cw_client_forked(mount->client)
               ? cw_fail(-EINVAL, "the tree was mapped by this process's parent: get it again here")
               : 0;
}

/* From now on nobody pins a part. *was: what the state was. */
static int begin_change(cw_mount *mount, enum cw_mount_state *was) {
    int code = check_mount(mount);
    if (code)
        return code;
    pthread_mutex_lock(&mount->client->lock);
    uint32_t pins = 0;
    for (uint32_t i = 0; i < mount->count; i++) {
        if (mount->parts[i]->state == CW_FIXED_CHANGING)
            code = cw_fail(-EBUSY, "another thread is exchanging this tree's memory");
        pins += mount->parts[i]->pins;
    }
    if (code == 0 && pins)
        code = cw_fail(-EBUSY,
                       "the tree's arrays are in use (%u times): end the sections on them "
                       "(`with array.reading()`) and the copies first",
                       pins);
    *was = mount->parked                                                    ? CW_MOUNT_PARKED
           : mount->count == 0 || mount->parts[0]->state == CW_FIXED_MAPPED ? CW_MOUNT_MAPPED
                                                                            : CW_MOUNT_UNMAPPED;
    for (uint32_t i = 0; i < mount->count && code == 0; i++)
        mount->parts[i]->state = CW_FIXED_CHANGING;
    pthread_mutex_unlock(&mount->client->lock);
    return code;
}

static void end_change(cw_mount *mount, enum cw_mount_state state) {
    pthread_mutex_lock(&mount->client->lock);
    mount->parked = state == CW_MOUNT_PARKED;
    for (uint32_t i = 0; i < mount->count; i++)
        mount->parts[i]->state = state == CW_MOUNT_MAPPED ? CW_FIXED_MAPPED : CW_FIXED_EMPTY;
    pthread_cond_broadcast(&mount->client->moved);
    pthread_mutex_unlock(&mount->client->lock);
}

static int drain(const cw_mount *mount, void *stream) {
    uint64_t gpus = 0;
    for (uint32_t i = 0; i < mount->count; i++)
        if (mount->parts[i]->location.gpu >= 0 && !mount->parts[i]->mapping.empty)
            gpus |= mount->parts[i]->mapping.reachers;
    return cw_drain(mount->client, gpus, stream);
}

/* ---- the exchange ---- */

static int map_part(struct cw_fixed *part, uint64_t memory) {
    return part->backend->fixed_map(&part->mapping, memory);
}

/* What is mapped goes, as far as the driver lets it. */
static void unmap_all(cw_mount *mount) {
    for (uint32_t i = 0; i < mount->count; i++)
        if (!mount->parts[i]->mapping.empty)
            (void)mount->parts[i]->backend->fixed_unmap(&mount->parts[i]->mapping);
}

/* The first parts, so many, get back what they had. Returns the state of all. */
static enum cw_mount_state undo(cw_mount *mount, uint32_t count, enum cw_mount_state was,
                                int *code) {
    char sentence[CW_DETAIL_MAX];
    int undone = 0;
    snprintf(sentence, sizeof sentence, "%s", cw_detail());
    for (uint32_t i = 0; was == CW_MOUNT_MAPPED && i < count && undone == 0; i++)
        undone = map_part(mount->parts[i], mount->parts[i]->memory);
    if (was != CW_MOUNT_MAPPED || undone)
        unmap_all(mount);
    *code = cw_fail(*code, "%.600s%s", sentence,
                    undone ? "; what was mapped before could not be mapped again: the tree is "
                             "unmapped"
                           : "");
    return undone ? CW_MOUNT_UNMAPPED : was;
}

/* Maps what follows at each part. On success the state is MAPPED, else what undo() says. */
static int exchange(cw_mount *mount, enum cw_mount_state was, enum cw_mount_state *now) {
    int code = 0;
    uint32_t i = 0;
    for (; i < mount->count && code == 0; i++) {
        struct cw_fixed *part = mount->parts[i];
        if (!mount->next[i].same || part->mapping.empty)
            code = map_part(part, mount->next[i].same ? part->memory : mount->next[i].memory);
    }
    *now = code ? undo(mount, i, was, &code) : CW_MOUNT_MAPPED;
    return cw_context_failure_serve(code);
}

static void drop_next(cw_mount *mount) {
    for (uint32_t i = 0; i < mount->count; i++)
        cw_next_drop(mount->parts[i], &mount->next[i]);
}

static void adopt(cw_mount *mount) {
    pthread_mutex_lock(&mount->client->lock);
    for (uint32_t i = 0; i < mount->count; i++)
        if (mount->next[i].held)
            cw_fixed_adopt(mount->parts[i], &mount->next[i]);
    pthread_mutex_unlock(&mount->client->lock);
}

/* ---- its life ---- */

void cw_mount_close(cw_mount *mount) {
    if (!mount)
        return;
    for (uint32_t i = 0; i < mount->count; i++) {
        cw_array_close(mount->copies[i]);
        cw_fixed_release(mount->parts[i]);
    }
    cw_client_unref(mount->client);
    free(mount->parts);
    free(mount->next);
    free(mount->copies);
    free(mount);
}

int cw_mount_open(const cw_tree *tree, cw_client *client, cw_mount **out) {
    if (!tree || !out)
        return cw_needs("a tree and a place for the mount");
    int code = client ? cw_client_usable(client) : cw_needs("a client");
    if (code)
        return code;
    uint32_t parts = tree->index.head->parts;
    cw_mount *mount = calloc(1, sizeof *mount);
    if (!mount)
        return cw_fail(-EDQUOT, "no memory for a tree's addresses");
    cw_client_ref(client);
    *mount = (cw_mount){.client = client,
                        .version = tree->version,
                        .layout_hash = tree->index.head->layout_hash,
                        .parts = calloc(parts + 1, sizeof(void *)),
                        .next = calloc(parts + 1, sizeof *mount->next),
                        .copies = calloc(parts + 1, sizeof(void *))};
    if (!mount->parts || !mount->next || !mount->copies)
        code = cw_fail(-EDQUOT, "no memory for the addresses of %u parts", parts);
    for (; mount->count < parts && code == 0; mount->count += code == 0) {
        cw_array *held = NULL;
        code = cw_part_in_own_slab(tree, client, mount->count, NULL, &held);
        if (code == 0)
            code = cw_fixed_new(client, held, &mount->parts[mount->count]);
        if (code)
            cw_array_close(held);
    }
    if (code)
        cw_mount_close(mount);
    else
        *out = mount;
    return cw_context_failure_serve(code);
}

int cw_mount_part(const cw_mount *mount, uint32_t part, cw_array **out) {
    int code = out ? check_mount(mount) : cw_needs("a place for the array");
    if (code == 0 && part >= mount->count)
        code = cw_fail(-EINVAL, "part %u of a tree of %u parts", part, mount->count);
    return code ? code : cw_fixed_array(mount->parts[part], out);
}

uint64_t cw_mount_version(const cw_mount *mount) {
    if (!mount)
        return 0;
    pthread_mutex_lock(&mount->client->lock);
    uint64_t version = mount->version;
    pthread_mutex_unlock(&mount->client->lock);
    return version;
}

int cw_mount_state(const cw_mount *mount) {
    if (!mount)
        return cw_needs("a mount");
    pthread_mutex_lock(&mount->client->lock);
    int state = mount->parked                                                   ? CW_MOUNT_PARKED
                : mount->count == 0 || mount->parts[0]->state != CW_FIXED_EMPTY ? CW_MOUNT_MAPPED
                                                                                : CW_MOUNT_UNMAPPED;
    pthread_mutex_unlock(&mount->client->lock);
    return state;
}

/* ---- unmap, map ---- */

int cw_mount_unmap(cw_mount *mount, void *stream) {
    enum cw_mount_state was, now = CW_MOUNT_UNMAPPED;
    int code = begin_change(mount, &was);
    if (code)
        return code;
    if (was == CW_MOUNT_MAPPED) {
        code = drain(mount, stream);
        now = code ? was : now;
        uint32_t i = 0;
        for (; i < mount->count && code == 0; i++)
            code = mount->parts[i]->backend->fixed_unmap(&mount->parts[i]->mapping);
        if (code && i)
            now = undo(mount, i, was, &code);
    }
    end_change(mount, was == CW_MOUNT_MAPPED ? now : was);
    return cw_context_failure_serve(code);
}

int cw_mount_map(cw_mount *mount) {
    enum cw_mount_state was, now;
    int code = begin_change(mount, &was);
    if (code)
        return code;
    now = was;
    if (was == CW_MOUNT_PARKED)
        code = cw_fail(-EINVAL, "the tree is parked: unpark it");
    for (uint32_t i = 0; was == CW_MOUNT_UNMAPPED && i < mount->count && code == 0; i++)
        code = map_part(mount->parts[i], mount->parts[i]->memory);
    if (was == CW_MOUNT_UNMAPPED && code)
        now = undo(mount, 0, was, &code);
    else if (code == 0)
        now = CW_MOUNT_MAPPED;
    end_change(mount, now);
    return cw_context_failure_serve(code);
}

/* ---- swap ---- */

static int check_layout(const cw_mount *mount, const cw_tree *tree) {
    const struct cw_index_head *head = tree->index.head;
    if (tree->client->instance != mount->client->instance)
        return cw_fail(-ECONNRESET, "the broker of the tree that is mapped has ended: what is "
                                    "mapped stays; get the new tree by itself");
    if (head->layout_hash != mount->layout_hash || head->parts != mount->count)
        return cw_fail(-EBADE,
                       "version %llu has another layout than version %llu, which is mapped (paths, "
                       "dtypes, shapes, places): get it as a tree of its own",
                       (unsigned long long)tree->version, (unsigned long long)mount->version);
    return 0;
}

/* Begins the sentence of what is wrong with a part by the first leaf that lies in it. */
static int say_leaf(const cw_tree *tree, uint32_t part, int code) {
    char sentence[CW_DETAIL_MAX];
    cw_leaf leaf = {.path = ""};
    snprintf(sentence, sizeof sentence, "%s", cw_detail());
    for (uint32_t i = 0; i < tree->index.head->leaves; i++)
        if (cw_tree_leaf(tree, i, &leaf) == 0 && leaf.part == part && leaf.size_bytes)
            return cw_fail(code, "leaf \"%.100s\": %.400s", leaf.path, sentence);
    return code;
}

/* Of each part what follows: a lease on the tree's, or on a copy, and its memory. */
static int prepare(cw_mount *mount, const cw_tree *tree, void *stream) {
    int code = check_layout(mount, tree);
    for (uint32_t i = 0; i < mount->count && code == 0; i++) {
        code = cw_part_in_own_slab(tree, mount->client, i, stream, &mount->next[i].held);
        if (code == 0)
            code = cw_fixed_prepare(mount->parts[i], &mount->next[i]);
        if (code == -EBADE)
            code = say_leaf(tree, i, code);
    }
    return code;
}

/* What was prepared comes in. The state is CHANGING. */
static int follow(cw_mount *mount, const cw_tree *tree, void *stream, enum cw_mount_state was,
                  enum cw_mount_state *now) {
    int code = drain(mount, stream);
    if (code == 0)
        code = exchange(mount, was, now);
    if (code)
        return code;
    adopt(mount);
    if (tree) {
        pthread_mutex_lock(&mount->client->lock);
        mount->version = tree->version;
        pthread_mutex_unlock(&mount->client->lock);
    }
    return 0;
}

int cw_mount_swap(cw_mount *mount, const cw_tree *tree, void *stream) {
    enum cw_mount_state was, now;
    int code = tree ? begin_change(mount, &was) : cw_needs("a tree");
    if (code)
        return code;
    now = was;
    code = was == CW_MOUNT_PARKED
               ? cw_fail(-EINVAL, "the tree is parked: unpark it, or get the new version by itself")
               : prepare(mount, tree, stream);
    if (code == 0)
        code = follow(mount, tree, stream, was, &now);
    end_change(mount, now);
    drop_next(mount); /* on success: of the version before */
    return cw_context_failure_serve(code);
}

/* ---- park, unpark ---- */

/* Copies a part to host memory. */
static int park_part(cw_mount *mount, uint32_t number) {
    struct cw_fixed *part = mount->parts[number];
    cw_array *copy;
    int code = cw_part_bytes(mount->client, "cpu", part->size_bytes, 0, &copy);
    if (code)
        return code;
    mount->copies[number] = copy;
    const struct cw_copy_end to = cw_copy_end_of(copy, 0),
                             from = {.bytes = (uint8_t *)part->mapping.base + part->begin_bytes,
                                     .gpu = part->location.gpu,
                                     .mapping = &part->mapping};
    return cw_copy_bytes(mount->client, &to, &from, part->size_bytes, NULL, false);
}

static void drop_copies(cw_mount *mount) {
    for (uint32_t i = 0; i < mount->count; i++) {
        cw_array_close(mount->copies[i]);
        mount->copies[i] = NULL;
    }
}

int cw_mount_park(cw_mount *mount, void *stream) {
    enum cw_mount_state was, now;
    int code = begin_change(mount, &was);
    if (code)
        return code;
    now = was;
    if (was == CW_MOUNT_UNMAPPED)
        code = cw_fail(-EINVAL, "the tree is unmapped: map it, then park it");
    else if (was == CW_MOUNT_MAPPED) {
        code = drain(mount, stream);
        for (uint32_t i = 0; i < mount->count && code == 0; i++)
            if (mount->parts[i]->location.gpu >= 0)
                code = park_part(mount, i);
        uint32_t i = 0;
        for (; i < mount->count && code == 0; i++)
            code = mount->parts[i]->backend->fixed_unmap(&mount->parts[i]->mapping);
        if (code && i)
            now = undo(mount, i, was, &code);
        if (code)
            drop_copies(mount);
        else
            now = CW_MOUNT_PARKED;
    }
    if (now == CW_MOUNT_PARKED && was == CW_MOUNT_MAPPED) {
        pthread_mutex_lock(&mount->client->lock);
        for (uint32_t i = 0; i < mount->count; i++)
            if (mount->copies[i]) /* nothing follows: its lease and its memory go */
                cw_fixed_adopt(mount->parts[i], &mount->next[i]);
        pthread_mutex_unlock(&mount->client->lock);
    }
    end_change(mount, now);
    drop_next(mount);
    return cw_context_failure_serve(code);
}

/* New GPU memory with what was parked. */
static int refill(cw_mount *mount, uint32_t number) {
    struct cw_fixed *part = mount->parts[number];
    struct cw_next *next = &mount->next[number];
    if (!mount->copies[number]) { /* host memory, which it has still */
        next->same = true;
        return 0;
    }
    int code = cw_part_bytes(mount->client, part->location.name, part->size_bytes, CW_OWN_SLAB,
                             &next->held);
    if (code) {
        next->held = NULL;
        return code;
    }
    code = cw_array_copy(next->held, 0, mount->copies[number], 0, part->size_bytes, NULL);
    if (code)
        return code;
    cw_array_freeze(next->held);
    return cw_fixed_prepare(part, next);
}

int cw_mount_unpark(cw_mount *mount, const cw_tree *tree) {
    enum cw_mount_state was, now;
    int code = begin_change(mount, &was);
    if (code)
        return code;
    now = was;
    if (was == CW_MOUNT_PARKED) {
        if (tree && tree->version != mount->version)
            code = cw_fail(-EINVAL, "version %llu is parked, version %llu was given",
                           (unsigned long long)mount->version, (unsigned long long)tree->version);
        else if (tree)
            code = prepare(mount, tree, NULL);
        for (uint32_t i = 0; !tree && i < mount->count && code == 0; i++)
            code = refill(mount, i);
        if (code == 0)
            code = follow(mount, tree, NULL, was, &now);
        if (code == 0)
            drop_copies(mount);
    } else if (was == CW_MOUNT_UNMAPPED)
        code = cw_fail(-EINVAL, "the tree is unmapped, not parked: map it");
    end_change(mount, now);
    drop_next(mount);
    return cw_context_failure_serve(code);
}
