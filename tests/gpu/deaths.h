/*
 * What the processes of fence_deaths share: the board of a job, and what a consumer does. See
 * fence_deaths.c.
 */
#ifndef CW_TESTS_GPU_DEATHS_H
#define CW_TESTS_GPU_DEATHS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "ipc/cableway.h"
#include "tests/gpu/cuda.h"
#include "tests/support.h"

#define WORDS      65536u
#define LIMIT_NS   30000000000 /* for one call */
#define ROUND_NS   90000000000
#define GOOD       41u
#define FIRST      7u
#define LOOP_BEGIN 1000u

/* When the producer is killed. */
enum moment {
    BEFORE_WORK, /* writing, nothing submitted */
    IN_SECTION,  /* its kernel runs, the writing did not end */
    IN_WORK,     /* the writing ended, its kernel runs */
    AFTER_WORK,  /* all is complete */
    ANY_TIME,    /* writing again and again */
    MOMENTS
};
extern const char *const moment_names[];

#define AHEAD 8 /* at most so many producers of one job are started or at work */

struct part { /* of one producer */
    pid_t pid;
    int round;
    int64_t begun_ns;
    enum moment moment;
    bool forks;
    unsigned late_ms;
    _Atomic int go;    /* its round is on */
    _Atomic int ready; /* it is where it is to be killed */
    _Atomic int child; /* of its own, that lives on */
};

struct board {
    _Atomic int round;    /* consumers may begin this one; -1: there is none any more */
    _Atomic int done[2];  /* consumers: rounds that they are through with */
    _Atomic int computed; /* the first consumer's y: 1 it is there, 2 it was told before */
    int job;
    struct part parts[AHEAD]; /* of a round: the round modulo AHEAD */
};

extern struct board *board;
extern struct part *part; /* of this process's round */
extern int round_now;     /* of this process */

/* Ends the process with a sentence unless code is 0 or more. */
void ok(int code, const char *what);
void pause_ns(int64_t ns);
/* Waits for a word of the board; too long is a hang. */
void await(_Atomic int *word, int value, const char *what);
/* Arrays of WORDS words, and their names: each round has its own. */
void name_of(char out[64], const char *what);
cw_array *make(cw_client *client);
CUdeviceptr at(cw_array *array);
void put(cw_array *array, const char *what);
cw_array *get(cw_client *client, const char *what);
/* One of a job's two consumers; does not return. */
void consume(int which, int rounds) __attribute__((noreturn));

#endif
