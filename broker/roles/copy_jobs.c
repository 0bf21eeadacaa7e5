/*
 * Jobs: see copy_jobs.h. The loop's thread owns all. What a client asks for is checked by the mover
 * when it opens the two blocks, as any client's handle is; here they are only held.
 */
#include "broker/roles/copy_jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"
#include "broker/memory/transit.h"

#define JOB_TRIES     16u  /* deaths of movers in one job */
#define SENTENCE_MOST 512u /* of what the mover says */

struct cwd_job {
    uint64_t number;
    struct cw_copy copy;
    struct cw_make make;        /* size_bytes 0: a copy */
    struct cwd_session *client; /* NULL: dead */
    uint32_t session;           /* its id */
    uint64_t request;
    bool moving, refs_held;
    unsigned tries;
    int status; /* once answered */
    uint32_t text_bytes;
    char text[SENTENCE_MOST];    /* a sentence, or what was made: no memory is needed to answer */
    struct cwd_job *prev, *next; /* in broker.jobs, or in the client's answers */
};

static void refs_drop(struct cwd_broker *b, struct cwd_job *job) {
    if (!job->refs_held)
        return;
    job->refs_held = false;
    cwd_ref_drop(b, job->copy.source.slab, job->copy.source.block, job->copy.source.gen);
    cwd_ref_drop(b, job->copy.target.slab, job->copy.target.block, job->copy.target.gen);
}

static int refs_take(struct cwd_broker *b, struct cwd_job *job) {
    const struct cw_block_range *from = &job->copy.source, *to = &job->copy.target;
    struct cwd_slab *source = cwd_slab_find(b, from->slab), *target = cwd_slab_find(b, to->slab);
    if (!source || !target)
        return cw_fail(-ESTALE, "the array is gone: there is no slab %u",
                       source ? to->slab : from->slab);
    int code = cwd_ref_take(b, source, from->block, from->gen, NULL);
    if (code)
        return code;
    code = cwd_ref_take(b, target, to->block, to->gen, NULL);
    if (code)
        cwd_ref_drop(b, from->slab, from->block, from->gen);
    job->refs_held = code == 0;
    return code;
}

static void job_free(struct cwd_job *job) {
    if (job->client) {
        job->client->jobs--;
        job->client->changed = true;
    }
    free(job);
}

/* make NULL: a copy. */
static int job_begin(struct cwd_broker *b, struct cwd_session *client, uint64_t request,
                     const struct cw_copy *copy, const struct cw_make *make) {
    if (client->jobs >= CWD_LIMIT(b, max_client_jobs))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_jobs,
                                "one more copy by the mover than the %u of this client was asked "
                                "for",
                                client->jobs);
    struct cwd_job *job = calloc(1, sizeof *job);
    if (!job)
        return cwd_no_memory("a copy by the mover");
    int code = 0;
    if (make) {
        job->make = *make;
    } else {
        job->copy = *copy;
        code = refs_take(b, job);
    }
    if (code) {
        free(job);
        return code;
    }
    job->number = ++b->next_job;
    job->client = client;
    job->session = client->id;
    job->request = request;
    client->jobs++;
    client->changed = true;
    b->job_count++;
    DL_APPEND(b->jobs, job);
    return 0;
}

int cwd_job_begin(struct cwd_broker *b, struct cwd_session *client, uint64_t request,
                  const struct cw_copy *copy) {
    return job_begin(b, client, request, copy, NULL);
}

int cwd_job_make(struct cwd_broker *b, struct cwd_session *client, uint64_t request,
                 const struct cw_make *make) {
    return job_begin(b, client, request, NULL, make);
}

/* Out of the list, and to who asked. text: a sentence (status below 0), or what was made. */
static void answer(struct cwd_broker *b, struct cwd_job *job, int status, const void *text,
                   uint32_t text_bytes) {
    DL_DELETE(b->jobs, job);
    b->job_count--;
    refs_drop(b, job);
    struct cw_made made = {.token = 0};
    if (status == 0 && text_bytes == sizeof made)
        memcpy(&made, text, sizeof made);
    if (made.token && job->client)
        cwd_transit_keep(b, made.token, job->client);
    if (!job->client) {
        struct cw_block_ref ref = {
            .token = made.token, .slab = made.slab, .block = made.block, .gen = made.gen};
        if (made.token)
            cwd_transit_end(b, b->mover.session, &ref);
        job_free(job);
        return;
    }
    job->status = status;
    CW_ASSERT(text_bytes <= sizeof job->text);
    if (text_bytes)
        memcpy(job->text, text, text_bytes);
    job->text_bytes = text_bytes;
    DL_APPEND(job->client->answers, job);
    (void)cwd_jobs_flush(b, job->client);
}

bool cwd_jobs_flush(struct cwd_broker *b, struct cwd_session *client) {
    bool worked = false;
    while (client->answers && client->state == CWD_OPEN && cwd_session_has_room(client)) {
        struct cwd_job *job = client->answers;
        DL_DELETE(client->answers, job);
        cwd_session_reply(b, client, job->make.size_bytes ? CW_OP_MAKE : CW_OP_COPY, job->request,
                          job->status, job->text, job->text_bytes);
        job_free(job);
        worked = true;
    }
    return worked;
}

void cwd_job_cancel(struct cwd_broker *b, struct cwd_session *client, uint64_t request) {
    static const char cancelled[] = "the copy by the mover was cancelled";
    struct cwd_job *job, *next;
    DL_FOREACH_SAFE(b->jobs, job, next) {
        if (job->client == client && job->request == request && !job->moving) {
            answer(b, job, -ECANCELED, cancelled, sizeof cancelled - 1);
            return;
        }
    }
}

bool cwd_job_take(struct cwd_broker *b, struct cw_job *out) {
    struct cwd_job *job = b->jobs;
    while (job && job->moving)
        job = job->next;
    if (!job)
        return false;
    job->moving = true;
    *out = (struct cw_job){.job = job->number, .copy = job->copy, .make = job->make};
    return true;
}

int cwd_job_done(struct cwd_broker *b, const struct cw_job_end *end, const void *text) {
    struct cwd_job *job = b->jobs;
    while (job && job->number != end->job)
        job = job->next;
    uint32_t text_bytes = end->text_bytes < SENTENCE_MOST ? end->text_bytes : SENTENCE_MOST;
    if (!job || !job->moving || end->status > 0 || end->status < -4095)
        return -EBADMSG;
    if (end->status == 0 && text_bytes != (job->make.size_bytes ? sizeof(struct cw_made) : 0))
        return -EBADMSG;
    CWD_COUNT(b, jobs_done);
    answer(b, job, end->status, text, text_bytes);
    return 0;
}

void cwd_jobs_repeat(struct cwd_broker *b) {
    struct cwd_job *job, *next;
    DL_FOREACH_SAFE(b->jobs, job, next) {
        char sentence[160];
        if (!job->moving)
            continue;
        job->moving = false;
        if (job->client && ++job->tries < JOB_TRIES) {
            CWD_COUNT(b, jobs_repeated);
            continue;
        }
        snprintf(sentence, sizeof sentence,
                 "cableway-mover died %u times in this copy of %" PRIu64
                 " bytes: the broker's log says how",
                 job->tries, job->copy.size_bytes + job->make.size_bytes);
        answer(b, job, -ENODEV, sentence, (uint32_t)strlen(sentence));
    }
}

void cwd_jobs_fail(struct cwd_broker *b, int status) {
    struct cwd_job *job, *next;
    char sentence[SENTENCE_MOST];
    snprintf(sentence, sizeof sentence, "%s", cw_detail());
    DL_FOREACH_SAFE(b->jobs, job, next) {
        if (!job->moving)
            answer(b, job, status, sentence, (uint32_t)strlen(sentence));
    }
}

void cwd_jobs_forget(struct cwd_broker *b, struct cwd_session *client) {
    struct cwd_job *job, *next;
    while (client->answers) {
        job = client->answers;
        DL_DELETE(client->answers, job);
        job_free(job);
    }
    DL_FOREACH_SAFE(b->jobs, job, next) {
        if (job->client != client)
            continue;
        job->client = NULL;
        client->jobs--;
        if (!job->moving)
            answer(b, job, -ECANCELED, "", 0);
    }
}

bool cwd_jobs_moving_for(struct cwd_broker *b, uint32_t session) {
    struct cwd_job *job;
    DL_FOREACH(b->jobs, job) {
        if (job->session == session && job->moving)
            return true;
    }
    return false;
}

void cwd_jobs_deinit(struct cwd_broker *b) {
    struct cwd_job *job, *next;
    DL_FOREACH_SAFE(b->jobs, job, next) {
        job->client ? (void)job->client->jobs-- : (void)0;
        job->client = NULL;
        answer(b, job, -ECANCELED, "", 0);
    }
}
