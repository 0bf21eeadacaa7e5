/*
 * 64 bytes there and back between two processes, each pinned to a core of its own.
 *
 * Hot, both sides running: our ring with its adaptive wait (as a user gets it), our ring spun on, a
 * bare spin loop on two words (the machine's own speed; it carries no payload), and Concurrency
 * Kit's SPSC ring, once spun on and once with the very same adaptive wait around it. After sleep:
 * our ring, Concurrency Kit's ring and a pipe, when the other side has gone to sleep. A spinning
 * loop and a sleeping peer never stand in one comparison.
 *
 * The child echoes; both walk the same schedule in step. If either dies the other is killed by the
 * parent's end or ends with its parent (PR_SET_PDEATHSIG).
 */
#include <ck_ring.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/session/ring.h"
#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"

#define RING_BYTES     (64u << 10)
#define CK_ENTRIES     1024u
#define PAYLOAD        64u
#define SPIN_BATCH     64u
#define AFTER_SLEEP_US 300u /* six times the spin: the other side sleeps by then */

struct message {
    uint64_t word[PAYLOAD / 8];
};
CK_RING_PROTOTYPE(message, message)

struct ck_half {
    _Alignas(64) ck_ring_t ring;
    _Alignas(64) struct cw_sleeper consumer;
    _Alignas(64) struct message entries[CK_ENTRIES];
};

struct shared {
    _Alignas(64) cw_a64 word[2][8]; /* one cache line each */
    struct ck_half ck[2];
    _Alignas(4096) uint8_t rings[2][sizeof(struct cw_ring) + RING_BYTES];
    double child_cpu_seconds[16];
};

struct side { /* one process's end of everything; half `out` goes to the other side */
    struct shared *shared;
    int out, in;
    struct cw_ring_producer producer;
    struct cw_ring_consumer consumer;
    uint64_t sequence; /* of the bare words */
    int pipe_in, pipe_out;
};

/* ---- our ring ---- */

static void ring_send(struct side *side, const struct message *message) {
    bench_need(cw_ring_write(&side->producer, 7, message, PAYLOAD), "write to the ring");
}

static bool ring_take(struct side *side, struct message *message) {
    uint32_t type, length;
    const void *payload;
    if (cw_ring_peek(&side->consumer, &type, &payload, &length) != 1)
        return false;
    CW_ASSERT(type == 7 && length == PAYLOAD);
    memcpy(message, payload, PAYLOAD);
    cw_ring_consume(&side->consumer);
    return true;
}

static bool ring_ready(struct side *side) {
    return cw_ring_has_record(&side->consumer);
}

/* ---- Concurrency Kit's ring ---- */

static void ck_send(struct side *side, const struct message *message) {
    struct ck_half *half = &side->shared->ck[side->out];
    struct message copy = *message;
    while (!ck_ring_enqueue_spsc_message(&half->ring, half->entries, &copy))
        CW_PAUSE();
}

static bool ck_take(struct side *side, struct message *message) {
    struct ck_half *half = &side->shared->ck[side->in];
    return ck_ring_dequeue_spsc_message(&half->ring, half->entries, message);
}

static bool ck_ready(struct side *side) {
    struct ck_half *half = &side->shared->ck[side->in];
    ck_pr_fence_memory();
    return ck_ring_size(&half->ring) != 0;
}

/* ---- the adaptive wait, the same for both rings ---- */

static inline __attribute__((always_inline)) void
wait_adaptive(struct side *side, struct message *message, struct cw_sleeper *self,
              struct cw_sleeper *other, bool (*take)(struct side *, struct message *),
              bool (*ready)(struct side *)) {
    if (take(side, message))
        return;
    cw_sleeper_here(self);
    if (cw_sleeper_spin_pays(other)) {
        int64_t until_ns = 0;
        do {
            for (unsigned i = 0; i < SPIN_BATCH; i++) {
                if (take(side, message))
                    return;
                CW_PAUSE();
            }
            if (!until_ns)
                until_ns = cw_now_ns() + CW_SPIN_NS;
        } while (cw_now_ns() < until_ns);
    }
    while (!take(side, message)) {
        cw_sleeper_announce(self);
        if (ready(side))
            cw_sleeper_cancel(self);
        else
            cw_sleeper_sleep(self, -1);
    }
}

static void ring_adaptive_send(struct side *side, const struct message *message) {
    ring_send(side, message);
    cw_sleeper_wake(&side->producer.ring->consumer);
}

static void ring_adaptive_take(struct side *side, struct message *message) {
    wait_adaptive(side, message, &side->consumer.ring->consumer, &side->producer.ring->consumer,
                  ring_take, ring_ready);
}

static void ck_adaptive_send(struct side *side, const struct message *message) {
    ck_send(side, message);
    /* Its enqueue is a release store: without this fence the look at the sleep word may come first.
     */
    ck_pr_fence_memory();
    cw_sleeper_wake(&side->shared->ck[side->out].consumer);
}

static void ck_adaptive_take(struct side *side, struct message *message) {
    wait_adaptive(side, message, &side->shared->ck[side->in].consumer,
                  &side->shared->ck[side->out].consumer, ck_take, ck_ready);
}

/* ---- the other ways ---- */

static void ring_spin_take(struct side *side, struct message *message) {
    while (!ring_take(side, message))
        CW_PAUSE();
}

static void ck_spin_take(struct side *side, struct message *message) {
    while (!ck_take(side, message))
        CW_PAUSE();
}

static void word_send(struct side *side, const struct message *message) {
    (void)message;
    CW_STORE(BENCH, &side->shared->word[side->out][0], ++side->sequence, release);
}

static void word_take(struct side *side, struct message *message) {
    /* The pinger has sent number n and waits for n back; the echo waits for n+1, which it then
     * returns. */
    uint64_t want = side->out == 0 ? side->sequence : side->sequence + 1;
    while (CW_LOAD(BENCH, &side->shared->word[side->in][0], acquire) != want)
        CW_PAUSE();
    message->word[0] = want;
}

static void pipe_send(struct side *side, const struct message *message) {
    CW_ASSERT(write(side->pipe_out, message, PAYLOAD) == PAYLOAD);
}

static void pipe_take(struct side *side, struct message *message) {
    CW_ASSERT(read(side->pipe_in, message, PAYLOAD) == PAYLOAD);
}

/* ---- the schedule ---- */

struct candidate {
    const char *name, *how;
    void (*send)(struct side *, const struct message *);
    void (*take)(struct side *, struct message *);
    bool checks; /* the payload comes back */
};

static const struct candidate hot[] = {
    {"two words, spin loop, no payload", "spins", word_send, word_take, false},
    {"our ring, adaptive wait", "adaptive", ring_adaptive_send, ring_adaptive_take, true},
    {"ck_ring, the same adaptive wait", "adaptive", ck_adaptive_send, ck_adaptive_take, true},
    {"our ring, spun on", "spins", ring_send, ring_spin_take, true},
    {"ck_ring, spun on", "spins", ck_send, ck_spin_take, true},
};
#define HOT (sizeof hot / sizeof *hot)

static const struct candidate slept[] = {
    {"our ring after sleep", "sleeps", ring_adaptive_send, ring_adaptive_take, true},
    {"ck_ring after sleep, same wait", "sleeps", ck_adaptive_send, ck_adaptive_take, true},
    {"pipe after sleep", "sleeps", pipe_send, pipe_take, true},
};
#define SLEPT (sizeof slept / sizeof *slept)

static double ping(struct side *side, const struct candidate *candidate, unsigned count) {
    struct message out = {{0}}, back = {{0}};
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < count; i++) {
        out.word[0] = out.word[7] = i;
        candidate->send(side, &out);
        candidate->take(side, &back);
        if (candidate->checks)
            CW_ASSERT(back.word[0] == i && back.word[7] == i);
    }
    return (double)(cw_now_ns() - begun_ns) / count;
}

static void echo(struct side *side, const struct candidate *candidate, unsigned count) {
    struct message message = {{0}};
    for (unsigned i = 0; i < count; i++) {
        candidate->take(side, &message);
        candidate->send(side, &message);
    }
}

static void run_child(struct side *side, unsigned rounds, unsigned batch, unsigned rounds_slept) {
    double *cpu = side->shared->child_cpu_seconds;
    for (unsigned round = 0; round < rounds; round++) {
        for (size_t i = 0; i < HOT; i++) {
            double before = bench_cpu_seconds();
            echo(side, &hot[i], batch);
            cpu[i] += bench_cpu_seconds() - before;
        }
    }
    for (unsigned round = 0; round < rounds_slept; round++) {
        for (size_t i = 0; i < SLEPT; i++) {
            double before = bench_cpu_seconds();
            echo(side, &slept[i], 1);
            cpu[HOT + i] += bench_cpu_seconds() - before;
        }
    }
    _exit(0);
}

static void run_parent(struct side *side, unsigned rounds, unsigned batch, unsigned rounds_slept,
                       struct bench_samples *samples) {
    for (unsigned round = 0; round < rounds; round++) {
        for (size_t i = 0; i < HOT; i++) {
            double before = bench_cpu_seconds();
            bench_add(&samples[i], ping(side, &hot[i], batch));
            samples[i].cpu_seconds += bench_cpu_seconds() - before;
        }
    }
    for (unsigned round = 0; round < rounds_slept; round++) {
        for (size_t i = 0; i < SLEPT; i++) {
            usleep(AFTER_SLEEP_US);
            double before = bench_cpu_seconds();
            bench_add(&samples[HOT + i], ping(side, &slept[i], 1));
            samples[HOT + i].cpu_seconds += bench_cpu_seconds() - before;
        }
    }
}

static void side_init(struct side *side, struct shared *shared, int out, int pipes[2][2]) {
    *side = (struct side){.shared = shared, .out = out, .in = !out};
    cw_ring_producer_init(&side->producer, (struct cw_ring *)(void *)shared->rings[out],
                          RING_BYTES);
    cw_ring_consumer_init(&side->consumer, (struct cw_ring *)(void *)shared->rings[!out],
                          RING_BYTES);
    side->pipe_out = pipes[out][1];
    side->pipe_in = pipes[!out][0];
}

int main(int argc, char **argv) {
    unsigned rounds = (unsigned)bench_option(argc, argv, "rounds", 2001);
    unsigned batch = (unsigned)bench_option(argc, argv, "batch", 100);
    unsigned rounds_slept = (unsigned)bench_option(argc, argv, "rounds-slept", 201);
    int cores[2], pipes[2][2];
    if (!bench_two_cores(cores)) {
        printf("{\"bench\": \"ring\", \"skipped\": \"one core only\"}\n");
        return 0;
    }
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CW_ASSERT(shared != MAP_FAILED && !pipe(pipes[0]) && !pipe(pipes[1]));
    for (int i = 0; i < 2; i++) {
        cw_ring_init((struct cw_ring *)(void *)shared->rings[i], RING_BYTES);
        ck_ring_init(&shared->ck[i].ring, CK_ENTRIES);
    }
    struct side side;
    pid_t child = fork();
    CW_ASSERT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench_pin(cores[1]);
        side_init(&side, shared, 1, pipes);
        run_child(&side, rounds, batch, rounds_slept);
    }
    bench_pin(cores[0]);
    side_init(&side, shared, 0, pipes);
    struct bench_samples samples[HOT + SLEPT] = {0};
    run_parent(&side, rounds, batch, rounds_slept, samples);
    int status;
    CW_ASSERT(waitpid(child, &status, 0) == child && status == 0);
    for (size_t i = 0; i < HOT + SLEPT; i++) {
        const struct candidate *candidate = i < HOT ? &hot[i] : &slept[i - HOT];
        samples[i].cpu_seconds += shared->child_cpu_seconds[i];
        bench_report("ring", candidate->name, candidate->how, "ns", &samples[i]);
        bench_samples_deinit(&samples[i]);
    }
    return 0;
}
