/*
 * Lines of ranks, marked with their rank.
 *
 * Each rank has a pipe for its stdout and one for its stderr. One thread of the keeper reads all
 * and writes lines as wholes, so that those of two ranks do not mix. While it writes, ranks wait
 * if their pipe is full, as for any reader. A reader of ours that goes away closes the pipes: ranks
 * get SIGPIPE. A process that outlives the job may hold a pipe open: at the end what is there is
 * read, and nobody waits for its end.
 */
#include "tools/run/tags.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/fd.h"
#include "shm/base/thread.h"

#define LINE_MAX_BYTES 65536 /* a longer line is cut in two */
#define TAG_BYTES      16

struct stream {
    int fd; /* -1: at its end */
    char *line;
    size_t used;
};

struct tags {
    uint32_t count; /* of streams: stdout and stderr of each rank in turn */
    struct stream *streams;
    struct pollfd *polls; /* one more: quit */
    int quit, error;
    bool gone[2]; /* nobody reads our stdout, stderr */
    bool begun;
    pthread_t thread;
};

struct tags *tags_new(uint32_t ranks) {
    struct tags *tags = calloc(1, sizeof *tags);
    CW_ASSERT(tags);
    tags->count = 2 * ranks;
    tags->streams = calloc(tags->count, sizeof *tags->streams);
    tags->polls = calloc(tags->count + 1, sizeof *tags->polls);
    CW_ASSERT(tags->streams && tags->polls);
    for (uint32_t i = 0; i < tags->count; i++)
        tags->streams[i].fd = -1;
    tags->quit = cw_fd_above_stdio(eventfd(0, EFD_CLOEXEC));
    return tags;
}

int tags_pipe(struct tags *tags, uint32_t rank, int fd) {
    int ends[2];
    struct stream *stream = &tags->streams[2 * rank + (fd == 2)];
    if (pipe2(ends, O_CLOEXEC))
        return -errno;
    stream->fd = cw_fd_above_stdio(ends[0]);
    int out = cw_fd_above_stdio(ends[1]);
    if (stream->fd < 0 || out < 0 || fcntl(stream->fd, F_SETFL, O_NONBLOCK) < 0) {
        int error = errno;
        if (out >= 0)
            close(out);
        return -error;
    }
    stream->line = malloc(LINE_MAX_BYTES);
    CW_ASSERT(stream->line);
    return out;
}

static void stream_close(struct stream *stream) {
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

/* Writes one line, or a piece of one, to stdout or stderr. */
static void write_line(struct tags *tags, uint32_t index, const char *line, size_t length) {
    static char text[LINE_MAX_BYTES + TAG_BYTES]; /* of the one thread */
    int out = index % 2;
    size_t size = (size_t)snprintf(text, TAG_BYTES, "[%u] ", index / 2), done = 0;
    memcpy(text + size, line, length);
    size += length;
    text[size++] = '\n';
    while (done < size && !tags->gone[out]) {
        ssize_t wrote = write(out + 1, text + done, size - done);
        if (wrote >= 0)
            done += (size_t)wrote;
        else if (errno == EAGAIN) { /* somebody else made it so */
            struct pollfd wait = {.fd = out + 1, .events = POLLOUT};
            poll(&wait, 1, -1);
        } else if (errno != EINTR) {
            tags->gone[out] = true;
            if (errno != EPIPE && !tags->error)
                tags->error = errno;
        }
    }
    for (uint32_t i = (uint32_t)out; tags->gone[out] && i < tags->count; i += 2)
        stream_close(&tags->streams[i]);
}

/* Writes the whole lines that a stream has; all: also what has no end of line yet. */
static void write_lines(struct tags *tags, uint32_t index, bool all) {
    struct stream *stream = &tags->streams[index];
    size_t begin = 0;
    for (char *end; (end = memchr(stream->line + begin, '\n', stream->used - begin));
         begin = (size_t)(end - stream->line) + 1)
        write_line(tags, index, stream->line + begin, (size_t)(end - stream->line) - begin);
    if (begin < stream->used && (all || (begin == 0 && stream->used == LINE_MAX_BYTES))) {
        write_line(tags, index, stream->line + begin, stream->used - begin);
        begin = stream->used;
    }
    stream->used -= begin;
    memmove(stream->line, stream->line + begin, stream->used);
}

/* Reads once. False: nothing is there now, or ever. */
static bool stream_read(struct tags *tags, uint32_t index) {
    struct stream *stream = &tags->streams[index];
    if (stream->fd < 0)
        return false;
    ssize_t got = read(stream->fd, stream->line + stream->used, LINE_MAX_BYTES - stream->used);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    if (got > 0)
        stream->used += (size_t)got;
    write_lines(tags, index, got <= 0);
    if (got <= 0)
        stream_close(stream);
    return got > 0;
}

static void *serve(void *context) {
    struct tags *tags = context;
    for (;;) {
        for (uint32_t i = 0; i < tags->count; i++)
            tags->polls[i] = (struct pollfd){.fd = tags->streams[i].fd, .events = POLLIN};
        tags->polls[tags->count] = (struct pollfd){.fd = tags->quit, .events = POLLIN};
        int found = poll(tags->polls, tags->count + 1, -1);
        CW_ASSERT(found >= 0 || errno == EINTR);
        if (found < 0)
            continue;
        bool ends = tags->polls[tags->count].revents != 0;
        for (uint32_t i = 0; i < tags->count; i++) {
            if (tags->polls[i].revents)
                stream_read(tags, i);
        }
        if (ends)
            break;
    }
    for (uint32_t i = 0; i < tags->count; i++) {
        while (stream_read(tags, i)) {
        }
        if (tags->streams[i].used)
            write_lines(tags, i, true);
    }
    return NULL;
}

int tags_begin(struct tags *tags) {
    int error = cw_thread_start(&tags->thread, NULL, serve, tags);
    tags->begun = error == 0;
    return -error;
}

int tags_end(struct tags *tags) {
    if (!tags)
        return 0;
    if (tags->begun) {
        eventfd_write(tags->quit, 1);
        pthread_join(tags->thread, NULL);
    }
    int error = tags->error;
    for (uint32_t i = 0; i < tags->count; i++) {
        stream_close(&tags->streams[i]);
        free(tags->streams[i].line);
    }
    if (tags->quit >= 0)
        close(tags->quit);
    free(tags->streams);
    free(tags->polls);
    free(tags);
    return -error;
}
