/*
 * I/O threads: see io_thread.h. One lock for the notes; an eventfd wakes the I/O thread when the
 * first of a burst comes.
 */
#include "broker/bridge/io/io_thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "broker/bridge/link/stream.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/turns.h"
#include "ipc/client.h"
#include "shm/base/error.h"
#include "shm/base/thread.h"
#include "shm/base/wait.h"

#define TICK_NS 100000000 /* heartbeats and idle streams are looked at no more often */

struct cwb_mailbox {
    struct cwb_watch watch; /* first: it is cast back */
    struct cwb_io_thread *io_thread;
    pthread_mutex_t lock;
    pthread_cond_t begun;
    struct cwb_note *first, **last;
    bool use_epoll, is_begun;
    int code;
    char detail[CW_DETAIL_MAX];
};

static void on_notes(struct cwb_watch *watch) {
    struct cwb_mailbox *box = (struct cwb_mailbox *)watch;
    uint64_t rings;
    ssize_t got = read(watch->fd, &rings, sizeof rings);
    (void)got;                                 /* however often it rang, the notes are looked at */
    box->io_thread->loop.now_ns = cw_now_ns(); /* it may have slept for long */
    pthread_mutex_lock(&box->lock);
    struct cwb_note *note = box->first;
    box->first = NULL;
    box->last = &box->first;
    pthread_mutex_unlock(&box->lock);
    while (note) {
        struct cwb_note *next = note->next;
        note->run(note);
        note = next;
    }
}

static int begin(struct cwb_io_thread *io_thread) {
    const char *why;
    int code = cwb_io_new(io_thread->box->use_epoll, true, &io_thread->loop.io, &why);
    return code ? code : cwb_io_watch(io_thread->loop.io, &io_thread->box->watch);
}

static void *run(void *context) {
    struct cwb_io_thread *io_thread = context;
    struct cwb_mailbox *box = io_thread->box;
    int64_t ticked_ns = 0;
    prctl(PR_SET_NAME, "cw-io-thread");
    cw_asks_nobody();
    int code = begin(io_thread); /* here: an io belongs to the thread that makes it */
    pthread_mutex_lock(&box->lock);
    box->is_begun = true;
    box->code = code;
    if (code)
        snprintf(box->detail, sizeof box->detail, "%s", cw_detail());
    pthread_cond_signal(&box->begun);
    pthread_mutex_unlock(&box->lock);
    if (code)
        return NULL;
    for (;;) {
        io_thread->loop.now_ns = cw_now_ns();
        if (io_thread->loop.now_ns - ticked_ns >= TICK_NS) {
            ticked_ns = io_thread->loop.now_ns;
            cwb_io_thread_tick(io_thread);
        }
        cwb_wires_turn(&io_thread->loop);
        cwb_wires_flush(&io_thread->loop);
        cwb_io_turn(io_thread->loop.io,
                    io_thread->loop.dirty || io_thread->loop.held ? 0
                    : io_thread->streams                          ? TICK_NS
                                                                  : -1,
                    &io_thread->loop.now_ns);
    }
}

static int start(struct cwb_io_thread *io_thread) {
    struct cwb_mailbox *box = io_thread->box;
    pthread_t thread;
    if (box->watch.fd < 0)
        return cw_fail(-EDQUOT, "eventfd failed: %m");
    if (cw_thread_start(&thread, NULL, run, io_thread) != 0)
        return cw_fail(-EDQUOT, "no thread could be made for a stream");
    pthread_mutex_lock(&box->lock);
    while (!box->is_begun)
        pthread_cond_wait(&box->begun, &box->lock);
    pthread_mutex_unlock(&box->lock);
    if (!box->code)
        return pthread_detach(thread);
    pthread_join(thread, NULL);
    return cw_fail(-EDQUOT, "%s", box->detail);
}

int cwb_io_thread_new(bool use_epoll, struct cwb_io_thread **out) {
    struct cwb_io_thread *io_thread = calloc(1, sizeof *io_thread);
    struct cwb_mailbox *box = calloc(1, sizeof *box);
    if (!io_thread || !box) {
        free(io_thread);
        free(box);
        return cwb_no_memory("a stream's thread");
    }
    io_thread->box = box;
    box->io_thread = io_thread;
    pthread_mutex_init(&box->lock, NULL);
    pthread_cond_init(&box->begun, NULL);
    box->last = &box->first;
    box->use_epoll = use_epoll;
    box->watch =
        (struct cwb_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .on_ready = on_notes};
    int code = start(io_thread);
    if (code == 0) {
        *out = io_thread;
        return 0;
    }
    if (box->watch.fd >= 0)
        close(box->watch.fd);
    if (io_thread->loop.io)
        cwb_io_free(io_thread->loop.io);
    free(box);
    free(io_thread);
    return code;
}

void cwb_io_thread_tell(struct cwb_io_thread *io_thread, struct cwb_note *note) {
    struct cwb_mailbox *box = io_thread->box;
    uint64_t one = 1;
    note->next = NULL;
    pthread_mutex_lock(&box->lock);
    bool first = !box->first;
    *box->last = note;
    box->last = &note->next;
    if (first && write(box->watch.fd, &one, sizeof one) < 0)
        CW_ASSERT(errno == EAGAIN || errno == EINTR); /* full: it was told */
    pthread_mutex_unlock(&box->lock);
}
