/*
 * Texts for local clients: names of a peer, and what is told about peers. See job.h.
 *
 * What a peer calls a name is looked at before anybody here sees it: what is none by our grammar,
 * or was not asked for, is left out, and the log says so once for each peer. Making memory for the
 * texts may block, and there may be many, so a helper does it.
 */
#include "broker/bridge/local/answers.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/fetch/floor.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/local/job.h"
#include "ipc/base/layout.h"

/* A name of which something stands here, or is coming: is it in the peer's list? What is told there
 * is not to be gone behind (floor.h). */
struct standing {
    struct cw_name_key there;
    char name[CW_KEY_MAX + 1];
    bool listed;
};

struct texts {
    struct cwb_work work; /* first: it is cast back */
    struct cwb_job *job;
    char *bytes;
    uint64_t size_bytes;
    uint64_t count, left_out; /* of a peer's names */
    bool names;
    struct standing *standing; /* sorted by name, once a helper has it */
    size_t standing_count;
    cw_array *array; /* what the client gets; NULL: nothing stands in it */
    struct cw_remote_names reply;
};

static const char *prefix_of(const struct cwb_job *job, uint32_t *length) {
    uint32_t space = (uint32_t)strnlen(job->there.text, job->there.length) + 1;
    *length = job->there.length - space;
    return job->there.text + space;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct standing *)a)->name, ((const struct standing *)b)->name);
}

static int to_name(const void *name, const void *standing) {
    return strcmp(name, ((const struct standing *)standing)->name);
}

static void note_listed(struct texts *texts, const char *name) {
    if (!texts->standing) /* nothing stands: bsearch() takes no NULL, not even of no length */
        return;
    struct standing *found =
        bsearch(name, texts->standing, texts->standing_count, sizeof *texts->standing, to_name);
    if (found)
        found->listed = true;
}

/* Those that the list is about. 0 or -EDQUOT. */
static int note_standing(struct texts *texts) {
    const struct cw_name_key *prefix = &texts->job->there;
    struct cwb_floor *floor, *next;
    size_t space = strnlen(prefix->text, prefix->length) + 1, room = 0;
    HASH_ITER(hh, texts->job->peer->floors, floor, next) {
        const struct cw_name_key *there = &floor->there;
        if (there->length < prefix->length ||
            memcmp(there->text, prefix->text, prefix->length) != 0 ||
            memchr(there->text + space, 0, there->length - space)) /* a part of a tree: no name */
            continue;
        if (texts->standing_count == room) {
            room = 2 * room + 64;
            struct standing *grown = realloc(texts->standing, room * sizeof *grown);
            if (!grown)
                return -EDQUOT;
            texts->standing = grown;
        }
        struct standing *standing = &texts->standing[texts->standing_count++];
        *standing = (struct standing){.there = *there};
        memcpy(standing->name, there->text + space, there->length - space);
    }
    return 0;
}

/* Before the client is told. */
static void tell_standing(const struct texts *texts) {
    struct cwb_job *job = texts->job;
    for (size_t i = 0; i < texts->standing_count; i++) {
        const struct standing *standing = &texts->standing[i];
        if (standing->listed)
            cwb_floor_some(job->bridge, job->peer, &standing->there);
        else
            cwb_floor_none(job->bridge, job->peer, &standing->there);
    }
}

/* The last one is terminated: begin() has looked. */
static void keep_names(struct texts *texts) {
    uint32_t prefix_bytes;
    const char *prefix = prefix_of(texts->job, &prefix_bytes);
    uint64_t kept_bytes = 0;
    char *end = texts->bytes + texts->size_bytes, *next;
    if (texts->standing_count)
        qsort(texts->standing, texts->standing_count, sizeof *texts->standing, by_name);
    for (char *at = texts->bytes; at < end; at = next) {
        size_t length = strlen(at);
        next = at + length + 1;
        if (length < prefix_bytes || memcmp(at, prefix, prefix_bytes) != 0 ||
            cw_local_name_check(at) != 0) {
            texts->left_out++;
            continue;
        }
        note_listed(texts, at);
        memmove(texts->bytes + kept_bytes, at, length + 1);
        kept_bytes += length + 1;
        texts->count++;
    }
    texts->size_bytes = kept_bytes;
}

static void look_through(struct texts *texts) {
    if (texts->names)
        keep_names(texts);
    else
        for (uint64_t i = 0; i < texts->size_bytes; i++)
            texts->count += texts->bytes[i] == 0;
}

static int copy_to_client(struct texts *texts) {
    int64_t length = (int64_t)texts->size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    cw_handle handle;
    texts->reply = (struct cw_remote_names){.count = texts->count};
    if (texts->size_bytes == 0)
        return 0;
    int code = cw_array_new(texts->job->bridge->client, "cpu", &layout, 0, &texts->array);
    if (code == 0)
        code = cw_array_write(texts->array, 0, texts->bytes, texts->size_bytes);
    if (code == 0)
        code = cw_array_export(texts->array, 1, &handle);
    if (code == 0)
        texts->reply = (struct cw_remote_names){.count = texts->count,
                                                .instance = handle.instance,
                                                .token = handle.token,
                                                .slab = handle.slab,
                                                .block = handle.block,
                                                .gen = handle.gen,
                                                .offset_bytes = handle.offset_bytes,
                                                .size_bytes = handle.size_bytes};
    return code;
}

static void run(struct cwb_work *work) {
    struct texts *texts = (struct texts *)work;
    look_through(texts);
    cwb_work_set(work, copy_to_client(texts));
}

static void done(struct cwb_work *work) {
    struct texts *texts = (struct texts *)work;
    struct cwb_peer *peer = texts->job->peer;
    if (texts->left_out && !peer->told_names) {
        peer->told_names = true;
        cwb_log("peer %s: %llu of %llu texts in its list of names are no names, or none that were "
                "asked for; they are left out, now and whenever it does so again",
                peer->config.name, (unsigned long long)texts->left_out,
                (unsigned long long)texts->left_out + texts->count);
    }
    if (work->code)
        cw_fail(work->code, "%s", work->detail);
    else
        tell_standing(texts);
    cwb_job_done(texts->job, work->code, &texts->reply, sizeof texts->reply);
    cw_array_close(texts->array);
    free(texts->bytes);
    free(texts->standing);
    free(texts);
}

static void begin(struct cwb_job *job, const char *bytes, uint64_t size_bytes, bool names) {
    if (size_bytes && bytes[size_bytes - 1]) {
        int code = cw_fail(-EREMOTEIO, "%s returned a malformed name list", job->peer->config.name);
        cwb_job_done(job, code, NULL, 0);
        return;
    }
    struct texts *texts = calloc(1, sizeof *texts);
    char *copy = malloc(size_bytes + 1);
    if (!texts || !copy) {
        free(texts);
        free(copy);
        cwb_job_done(job, cw_fail(-EDQUOT, "the bridge has no memory for a list of names"), NULL,
                     0);
        return;
    }
    memcpy(copy, bytes, size_bytes);
    *texts = (struct texts){.work = {.run = run, .done = done},
                            .job = job,
                            .bytes = copy,
                            .size_bytes = size_bytes,
                            .names = names};
    if (names && note_standing(texts) != 0) {
        free(texts->standing);
        free(texts);
        free(copy);
        cwb_job_done(job, cw_fail(-EDQUOT, "the bridge has no memory for a list of names"), NULL,
                     0);
        return;
    }
    job->on_cancel = NULL; /* it ends by itself, soon */
    cwb_work_begin(job->bridge->broker_helpers, &texts->work);
}

void cwb_job_texts(struct cwb_job *job, const char *texts, uint64_t size_bytes) {
    begin(job, texts, size_bytes, false);
}

void cwb_job_names(struct cwb_job *job, const char *texts, uint64_t size_bytes) {
    begin(job, texts, size_bytes, true);
}
