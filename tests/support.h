/*
 * What every test needs: chance with a printed seed, time, children that end with a verdict.
 *
 * The seed is printed by each program that uses chance; CABLEWAY_TEST_SEED=N repeats its run.
 * CABLEWAY_SOAK set (make soak) makes the long tests longer.
 */
#ifndef CW_TESTS_SUPPORT_H
#define CW_TESTS_SUPPORT_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define CW_TEST_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CW_TEST_SANITIZED 1
#endif
#ifndef CW_TEST_SANITIZED
#define CW_TEST_SANITIZED 0
#endif

/* splitmix64: a state of one word, so that each thread has its own. */
struct chance {
    uint64_t state;
};

static inline uint64_t chance_next(struct chance *chance) {
    uint64_t z = chance->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A number in 0..below-1. */
static inline uint64_t chance_below(struct chance *chance, uint64_t below) {
    return chance_next(chance) % below;
}

/* The seed of this run, printed once, the same in all files and children of a program. */
static inline uint64_t chance_seed(void) {
    const char *text = getenv("CABLEWAY_TEST_SEED");
    char fresh[32];
    if (!text) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t seed =
            (uint64_t)now.tv_nsec * 1000003u + (uint64_t)now.tv_sec + ((uint64_t)getpid() << 40);
        snprintf(fresh, sizeof fresh, "%llu", (unsigned long long)(seed + !seed));
        setenv("CABLEWAY_TEST_SEED", fresh, 1);
        text = fresh;
        printf("# CABLEWAY_TEST_SEED=%s repeats this run\n", text);
        fflush(stdout);
    }
    return strtoull(text, NULL, 0);
}

static inline struct chance chance_init(uint64_t stream) {
    struct chance chance = {chance_seed() ^ (stream * 0xd1342543de82ef95u)};
    chance_next(&chance);
    return chance;
}

/* Rounds of a long test: more with make soak, fewer under a sanitizer. */
static inline uint64_t test_rounds(uint64_t rounds) {
    if (getenv("CABLEWAY_SOAK"))
        rounds *= 20;
    return CW_TEST_SANITIZED ? rounds / 10 + 1 : rounds;
}

static inline int64_t test_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* In a child: a fault ends it, instead of going back into cmocka's runner. */
static inline void faults_end_us(void) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        signal(faults[i], SIG_DFL);
}

/* Runs body in a child: its exit status, or 128 + the signal that ended it. */
static inline int in_child(int (*body)(void *context), void *context) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        faults_end_us();
        _exit(body(context));
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
