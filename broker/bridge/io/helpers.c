/*
 * Helpers: see helpers.h. One lock for both queues; an eventfd wakes the loop when the first piece
 * of a burst is done.
 */
#include "broker/bridge/io/helpers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "broker/bridge/io/io.h"
#include "broker/bridge/memory.h"
#include "shm/base/thread.h"

struct queue {
    struct cwb_work *first, **last;
};

struct cwb_helpers {
    struct cwb_watch watch; /* first: it is cast back */
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct queue begun, done;
    bool stop;
    const char *name;
    pthread_t threads[CWB_HELPERS_MAX];
    unsigned count, most;
    unsigned waiting, idle; /* pieces that were begun; threads that have none */
};

static void push(struct queue *queue, struct cwb_work *work) {
    work->next = NULL;
    *queue->last = work;
    queue->last = &work->next;
}

static struct cwb_work *pop(struct queue *queue) {
    struct cwb_work *work = queue->first;
    if (work) {
        queue->first = work->next;
        if (!queue->first)
            queue->last = &queue->first;
    }
    return work;
}

static void tell_locked(struct cwb_helpers *helpers, struct cwb_work *work) {
    uint64_t one = 1;
    bool first = !helpers->done.first;
    push(&helpers->done, work);
    if (first && write(helpers->watch.fd, &one, sizeof one) < 0)
        CW_ASSERT(errno == EAGAIN || errno == EINTR); /* full: it was told */
}

static void *helper(void *context) {
    struct cwb_helpers *helpers = context;
    pthread_mutex_lock(&helpers->lock);
    while (!helpers->stop) {
        struct cwb_work *work = pop(&helpers->begun);
        if (!work) {
            helpers->idle++;
            pthread_cond_wait(&helpers->filled, &helpers->lock);
            helpers->idle--;
            continue;
        }
        helpers->waiting--;
        pthread_mutex_unlock(&helpers->lock);
        work->run(work);
        pthread_mutex_lock(&helpers->lock);
        tell_locked(helpers, work);
    }
    pthread_mutex_unlock(&helpers->lock);
    return NULL;
}

static void on_ready(struct cwb_watch *watch) {
    struct cwb_helpers *helpers = (struct cwb_helpers *)watch;
    uint64_t rings;
    ssize_t got = read(watch->fd, &rings, sizeof rings);
    (void)got; /* however often it rang, the queue is looked at */
    pthread_mutex_lock(&helpers->lock);
    struct cwb_work *work = helpers->done.first;
    helpers->done = (struct queue){.first = NULL, .last = &helpers->done.first};
    pthread_mutex_unlock(&helpers->lock);
    while (work) {
        struct cwb_work *next = work->next;
        work->done(work);
        work = next;
    }
}

static int add_thread(struct cwb_helpers *helpers) {
    pthread_t *thread = &helpers->threads[helpers->count];
    if (cw_thread_start(thread, NULL, helper, helpers) != 0)
        return cw_fail(-EDQUOT, "no thread could be made for the bridge's helpers");
    pthread_setname_np(*thread, helpers->name);
    helpers->count++;
    return 0;
}

int cwb_helpers_new(struct cwb_io *io, const char *name, unsigned most, struct cwb_helpers **out) {
    struct cwb_helpers *helpers = calloc(1, sizeof *helpers);
    CW_ASSERT(most <= CWB_HELPERS_MAX);
    if (!helpers)
        return cwb_no_memory("its helpers");
    helpers->name = name;
    helpers->most = most;
    helpers->begun.last = &helpers->begun.first;
    helpers->done.last = &helpers->done.first;
    pthread_mutex_init(&helpers->lock, NULL);
    pthread_cond_init(&helpers->filled, NULL);
    helpers->watch =
        (struct cwb_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .on_ready = on_ready};
    int code = helpers->watch.fd < 0 ? cw_fail(-EDQUOT, "eventfd failed: %m")
                                     : cwb_io_watch(io, &helpers->watch);
    while (code == 0 && helpers->count < CWB_HELPERS)
        code = add_thread(helpers);
    if (code)
        cwb_helpers_free(helpers);
    else
        *out = helpers;
    return code;
}

void cwb_helpers_free(struct cwb_helpers *helpers) {
    if (!helpers)
        return;
    pthread_mutex_lock(&helpers->lock);
    helpers->stop = true;
    pthread_cond_broadcast(&helpers->filled);
    pthread_mutex_unlock(&helpers->lock);
    for (unsigned i = 0; i < helpers->count; i++)
        pthread_join(helpers->threads[i], NULL);
    if (helpers->watch.fd >= 0)
        close(helpers->watch.fd);
    pthread_mutex_destroy(&helpers->lock);
    pthread_cond_destroy(&helpers->filled);
    free(helpers);
}

void cwb_work_begin(struct cwb_helpers *helpers, struct cwb_work *work) {
    pthread_mutex_lock(&helpers->lock);
    push(&helpers->begun, work);
    helpers->waiting++;
    /* Without one more they do it, later. */
    if (helpers->waiting > helpers->idle && helpers->count < helpers->most)
        (void)add_thread(helpers);
    pthread_cond_signal(&helpers->filled);
    pthread_mutex_unlock(&helpers->lock);
}

void cwb_work_tell(struct cwb_helpers *helpers, struct cwb_work *work) {
    pthread_mutex_lock(&helpers->lock);
    tell_locked(helpers, work);
    pthread_mutex_unlock(&helpers->lock);
}

void cwb_work_set(struct cwb_work *work, int code) {
    work->code = code;
    work->detail[0] = 0;
    if (code < 0)
        strcpy(work->detail, cw_detail());
}
