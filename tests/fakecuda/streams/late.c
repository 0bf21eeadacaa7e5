/*
 * Writes after death: see late.h.
 */
#include "tests/fakecuda/streams/late.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/streams/stream.h"

#define STREAMS_MAX 256
#define STACK_BYTES (64 << 10)
#define WAIT_MS     500
#define ALONE       __attribute__((no_sanitize("address", "thread", "undefined"), noinline))

static struct fake_stream *_Atomic watched[STREAMS_MAX];

/* A call of the kernel that leaves errno alone. */
ALONE static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

ALONE static void pause_ms(uint64_t pause) {
    struct timespec left = {(time_t)(pause / 1000), (long)(pause % 1000 * 1000000)};
    while (call(SYS_nanosleep, (long)&left, (long)&left, 0) == -EINTR)
        ;
}

ALONE static void copy_bytes(volatile char *to, const volatile char *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* Is the word there in time? */
ALONE static bool await_word(const struct fake_word *word, uint64_t *left_ms) {
    for (;;) {
        uint64_t now = word->size_bytes == 8 ? *(volatile uint64_t *)word->address
                                             : *(volatile uint32_t *)word->address;
        if (fake_word_reached(word, now))
            return true;
        if (!*left_ms)
            return false;
        pause_ms(1);
        --*left_ms;
    }
}

/* False: nothing behind it is done. */
ALONE static bool work_late(const struct fake_work *work, uint64_t *left_ms) {
    const struct fake_copy *copy = &work->copy;
    const struct fake_fill *fill = &work->fill;
    if (work->kind == FAKE_WAIT)
        return await_word(&work->word, left_ms);
    pause_ms(fake_config.late_ms);
    switch (work->kind) {
    case FAKE_WRITE:
        if (work->word.size_bytes == 8)
            *(volatile uint64_t *)work->word.address = work->word.value;
        else
            *(volatile uint32_t *)work->word.address = (uint32_t)work->word.value;
        break;
    case FAKE_COPY:
        for (size_t row = 0; row < copy->height; row++)
            copy_bytes((char *)copy->to + row * copy->to_pitch_bytes,
                       (char *)copy->from + row * copy->from_pitch_bytes, copy->width_bytes);
        break;
    case FAKE_FILL:
        for (size_t i = 0; i < fill->count; i++)
            copy_bytes((char *)fill->to + i * (size_t)fill->unit_bytes, (const char *)&fill->value,
                       (size_t)fill->unit_bytes);
        break;
    default:
        return work->kind == FAKE_RECORD;
    }
    return true;
}

ALONE static void wait_and_work(long pidfd) {
    if (!fake_config.late_keeps) {
        if (pidfd > 0)
            call(SYS_close_range, 0, pidfd - 1, 0);
        call(SYS_close_range, pidfd + 1, ~0u, 0);
    }
    struct pollfd dead = {(int)pidfd, POLLIN, 0};
    while (call(SYS_poll, (long)&dead, 1, -1) == -EINTR)
        ;
    uint64_t left_ms = WAIT_MS;
    for (int i = 0; i < STREAMS_MAX; i++) {
        struct fake_stream *stream = watched[i];
        struct fake_work *work = stream ? stream->current : NULL;
        while (work && work_late(work, &left_ms))
            work = work->next;
    }
    call(SYS_exit_group, 0, 0, 0);
}

/* A process over this one's memory that begins in wait_and_work. By hand, since a sanitizer takes
 * clone() for a fork, whose child has memory of its own. It has no signal at its end, so that
 * wait() of the program does not meet it. */
ALONE static long begin_process(char *stack_end, long pidfd) {
    long *top = (long *)(void *)stack_end;
    long result;
    top -= 2; /* so that a call from there finds the stack aligned */
    *--top = pidfd;
    *--top = (long)wait_and_work;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "pop %%rax\n\t"
                     "pop %%rdi\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "call *%%rax\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"((long)CLONE_VM), "S"(top), "d"(0L)
                     : "rcx", "r11", "r8", "r9", "r10", "memory");
    return result;
}

static void begin(void) {
    static bool begun;
    if (begun || !fake_config.late_ms)
        return;
    begun = true;
    char *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Opened here: the process may be dead before the other one runs at all. */
    long pidfd = syscall(SYS_pidfd_open, getpid(), 0);
    if (stack == MAP_FAILED || pidfd < 0 || begin_process(stack + STACK_BYTES, pidfd) < 0)
        fprintf(stderr, "fakecuda: nobody will write late: %m\n");
    if (pidfd >= 0)
        close((int)pidfd);
}

void fake_late_watch(struct fake_stream *stream) {
    begin();
    for (int i = 0; i < STREAMS_MAX; i++)
        if (!watched[i]) {
            watched[i] = stream;
            return;
        }
}

void fake_late_forget(struct fake_stream *stream) {
    for (int i = 0; i < STREAMS_MAX; i++)
        if (watched[i] == stream)
            watched[i] = NULL;
}
