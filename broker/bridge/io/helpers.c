/*
 * Work: see helpers.h. One lock for both queues; an eventfd wakes the loop when the first piece of
 * a burst is done.
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

struct cwb_works {
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

static void tell_locked(struct cwb_works *works, struct cwb_work *work) {
    uint64_t one = 1;
    bool first = !works->done.first;
    push(&works->done, work);
    if (first && write(works->watch.fd, &one, sizeof one) < 0)
        CW_ASSERT(errno == EAGAIN || errno == EINTR); /* full: it was told */
}

static void *helper(void *context) {
    struct cwb_works *works = context;
    pthread_mutex_lock(&works->lock);
    while (!works->stop) {
        struct cwb_work *work = pop(&works->begun);
        if (!work) {
            works->idle++;
            pthread_cond_wait(&works->filled, &works->lock);
            works->idle--;
            continue;
        }
        works->waiting--;
        pthread_mutex_unlock(&works->lock);
        work->run(work);
        pthread_mutex_lock(&works->lock);
        tell_locked(works, work);
    }
    pthread_mutex_unlock(&works->lock);
    return NULL;
}

static void on_ready(struct cwb_watch *watch) {
    struct cwb_works *works = (struct cwb_works *)watch;
    uint64_t rings;
    ssize_t got = read(watch->fd, &rings, sizeof rings);
    (void)got; /* however often it rang, the queue is looked at */
    pthread_mutex_lock(&works->lock);
    struct cwb_work *work = works->done.first;
    works->done = (struct queue){.first = NULL, .last = &works->done.first};
    pthread_mutex_unlock(&works->lock);
    while (work) {
        struct cwb_work *next = work->next;
        work->done(work);
        work = next;
    }
}

static int add_thread(struct cwb_works *works) {
    pthread_t *thread = &works->threads[works->count];
    if (cw_thread_start(thread, NULL, helper, works) != 0)
        return cw_fail(-EDQUOT, "no thread could be made for the bridge's helpers");
    pthread_setname_np(*thread, works->name);
    works->count++;
    return 0;
}

int cwb_works_new(struct cwb_io *io, const char *name, unsigned most, struct cwb_works **out) {
    struct cwb_works *works = calloc(1, sizeof *works);
    CW_ASSERT(most <= CWB_HELPERS_MAX);
    if (!works)
        return cwb_no_memory("its helpers");
    works->name = name;
    works->most = most;
    works->begun.last = &works->begun.first;
    works->done.last = &works->done.first;
    pthread_mutex_init(&works->lock, NULL);
    pthread_cond_init(&works->filled, NULL);
    works->watch =
        (struct cwb_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .on_ready = on_ready};
    int code = works->watch.fd < 0 ? cw_fail(-EDQUOT, "eventfd failed: %m")
                                   : cwb_io_watch(io, &works->watch);
    while (code == 0 && works->count < CWB_HELPERS)
        code = add_thread(works);
    if (code)
        cwb_works_free(works);
    else
        *out = works;
    return code;
}

void cwb_works_free(struct cwb_works *works) {
    if (!works)
        return;
    pthread_mutex_lock(&works->lock);
    works->stop = true;
    pthread_cond_broadcast(&works->filled);
    pthread_mutex_unlock(&works->lock);
    for (unsigned i = 0; i < works->count; i++)
        pthread_join(works->threads[i], NULL);
    if (works->watch.fd >= 0)
        close(works->watch.fd);
    pthread_mutex_destroy(&works->lock);
    pthread_cond_destroy(&works->filled);
    free(works);
}

void cwb_work_begin(struct cwb_works *works, struct cwb_work *work) {
    pthread_mutex_lock(&works->lock);
    push(&works->begun, work);
    works->waiting++;
    /* Without one more they do it, later. */
    if (works->waiting > works->idle && works->count < works->most)
        (void)add_thread(works);
    pthread_cond_signal(&works->filled);
    pthread_mutex_unlock(&works->lock);
}

void cwb_work_tell(struct cwb_works *works, struct cwb_work *work) {
    pthread_mutex_lock(&works->lock);
    tell_locked(works, work);
    pthread_mutex_unlock(&works->lock);
}

void cwb_work_set(struct cwb_work *work, int code) {
    work->code = code;
    work->detail[0] = 0;
    if (code < 0)
        strcpy(work->detail, cw_detail());
}
