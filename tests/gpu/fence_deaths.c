/*
 * Deaths behind fences: a producer is killed before, in and after its GPU work while streams of
 * other processes wait for it; in half of the rounds a forked child of it lives on. In each round
 *   nobody hangs; every consumer whose data are not complete is told so, also the one that reads
 *   what another computed from them; what was complete stays good and is told to be so;
 * and in the end no byte of GPU memory is left.
 *
 *   fence_deaths [ROUNDS [JOBS [SECONDS]]]     on the test double; CAUSEWAY_TEST_GPU=1: on a real
 *   GPU. After SECONDS no further round is begun, and as many as there were are told.
 *
 * A job is a process with two consumers that live through all its rounds; the producer is a new
 * process each round. What takes time is a producer's way to its GPU (half a second and more), so
 * some are on that way beforehand, each with its part: what is to become of it. They share a board.
 */
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "ipc/causeway.h"
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
static const char *const moment_names[] = {"before its work", "in its section", "in its work",
                                           "after its work", "at any time"};

#define AHEAD 4 /* producers of one job that are started or at work */

struct part { /* of one producer */
    pid_t pid;
    int round;
    int64_t begun_ns;
    enum moment moment;
    bool forks;
    unsigned late_ms;
    _Atomic int go;    /* its round is on */
    _Atomic int warm;  /* 1: it could begin */
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

struct figures { /* shared by all jobs; microseconds */
    _Atomic int kills;
    _Atomic int64_t start_us,
        told_us; /* sums: to be warm; from the kill until both consumers knew */
};
static struct board *board;
static struct figures *figures;
static struct part none;
static struct part *part = &none; /* of this process's round */
static int round_now;             /* of this process */

static void ok(int code, const char *what) {
    if (code < 0)
        test_fail("job %d round %d (killed %s): %s: %d, %s", board->job, round_now,
                  moment_names[part->moment], what, code, cw_error());
}

static void pause_ns(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

static void await(_Atomic int *word, int value, const char *what) {
    int64_t end_ns = test_now_ns() + ROUND_NS;
    while (atomic_load(word) != value) {
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d (killed %s%s): %s: a hang", board->job, round_now,
                      moment_names[part->moment], part->forks ? ", a child lives" : "", what);
        pause_ns(100000);
    }
}

static void name_of(char out[64], const char *what) {
    snprintf(out, 64, "job%d/round%d/%s", board->job, round_now, what);
}

static cw_array *make(cw_client *client) {
    int64_t shape = WORDS;
    cw_layout layout = {.ndim = 1, .itemsize = 4, .shape = &shape, .dtype = "<u4"};
    cw_array *array;
    ok(cw_array_new(client, "cuda:0", &layout, 0, &array), "cw_array_new");
    return array;
}

static CUdeviceptr at(cw_array *array) {
    return (CUdeviceptr)(uintptr_t)cw_array_data(array);
}

static void put(cw_array *array, const char *what) {
    char name[64];
    name_of(name, what);
    ok(cw_array_put(array, name, 0, NULL, 0), "cw_array_put");
}

static cw_array *get(cw_client *client, const char *what) {
    char name[64];
    cw_array *array;
    name_of(name, what);
    ok(cw_wait(client, name, LIMIT_NS), "cw_wait");
    ok(cw_get(client, name, 0, &array), "cw_get");
    return array;
}

/* A child that ends with this process. */
static pid_t fork_tied(void) {
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return child;
}

/* ---- the producer ---- */

static void write_all(cw_array *array, CUstream stream, uint32_t value) {
    ok(cw_array_writing_begin(array, stream, LIMIT_NS), "cw_array_writing_begin");
    CU(cuMemsetD32Async(at(array), value, WORDS, stream));
    ok(cw_array_writing_end(array, stream, 1), "cw_array_writing_end");
}

static void live_on(void) {
    pid_t child = fork();
    if (child == 0) {
        alarm(2 * ROUND_NS / 1000000000); /* nobody is left who would end it */
        for (;;)
            pause();
    }
    atomic_store(&part->child, child);
}

static void produce(void) {
    cw_client *client;
    CUdeviceptr flag;
    /* The double does late what is no kernel: a stream's writes would pass its kernel by. */
    if (part->late_ms && part->moment == ANY_TIME && !test_cuda_is_real()) {
        char text[16];
        snprintf(text, sizeof text, "%u", part->late_ms);
        setenv("CAUSEWAY_FAKECUDA_LATE_MS", text, 1);
        setenv("CAUSEWAY_FAKECUDA_LATE_KEEPS", part->forks ? "1" : "0", 1);
    }
    test_cuda_start();
    CU(cuMemAlloc(&flag, 64));
    CUstream stream = test_stream();
    test_fill(stream, flag, 16, 0);
    ok(cw_connect(NULL, NULL, 0, &client), "cw_connect");
    cw_array *good = make(client), *x = make(client);
    write_all(good, stream, GOOD);
    write_all(x, stream, FIRST);
    ok(cw_array_wait(good, LIMIT_NS), "cw_array_wait");
    ok(cw_array_wait(x, LIMIT_NS), "cw_array_wait");
    atomic_store(&part->warm, 1);
    while (!atomic_load(&part->go)) /* until it is its turn, or its job ends */
        pause_ns(200000);
    put(good, "good");
    if (part->forks)
        live_on();
    if (part->moment != AFTER_WORK && part->moment != ANY_TIME) {
        ok(cw_array_writing_begin(x, stream, LIMIT_NS), "cw_array_writing_begin");
        if (part->moment != BEFORE_WORK)
            test_spin(stream, flag);
        if (part->moment == IN_WORK) {
            test_fill(stream, at(x), WORDS, 8);
            ok(cw_array_writing_end(x, stream, 1), "cw_array_writing_end");
        }
    }
    put(x, "x");
    atomic_store(&part->ready, 1);
    for (uint32_t value = LOOP_BEGIN; part->moment == ANY_TIME; value++) {
        write_all(x, stream, value);
        if (value % 2 == 0) /* what is queued may land late, but not later than CW_POISON_NS */
            ok(cw_array_wait(x, LIMIT_NS), "cw_array_wait");
    }
    for (;;)
        pause();
}

/* ---- consumers ---- */

struct consumer {
    cw_client *client;
    CUstream stream;
    CUdeviceptr copy;
    uint32_t *host;
    cw_array *good;
};

/* Was the stream's work spoilt? The next call tells. */
static bool told_next(struct consumer *c) {
    int code = cw_array_reading_begin(c->good, c->stream, LIMIT_NS);
    if (code == -EOWNERDEAD)
        return true;
    ok(code, "reading what is good");
    code = cw_array_reading_end(c->good, c->stream);
    if (code != -EOWNERDEAD)
        ok(code, "the end of reading what is good");
    return code == -EOWNERDEAD;
}

/* Copies an array out in order. True: told that it is no good. */
static bool look(struct consumer *c, cw_array *array, uint32_t *value) {
    int code = cw_array_reading_begin(array, c->stream, LIMIT_NS);
    if (code == -EOWNERDEAD)
        return true;
    ok(code, "cw_array_reading_begin");
    CU(cuMemcpyDtoDAsync(c->copy, at(array), WORDS * 4, c->stream));
    int ended = cw_array_reading_end(array, c->stream);
    if (ended != -EOWNERDEAD)
        ok(ended, "cw_array_reading_end");
    test_finish(c->stream);
    if (told_next(c) || ended)
        return true;
    CU(cuMemcpyDtoHAsync(c->host, c->copy, WORDS * 4, c->stream));
    test_finish(c->stream);
    for (uint32_t i = 1; i < WORDS; i++)
        if (c->host[i] != c->host[0])
            test_fail("job %d round %d (killed %s): word %u is %u, word 0 is %u, and nobody told",
                      board->job, round_now, moment_names[part->moment], i, c->host[i], c->host[0]);
    *value = c->host[0];
    return false;
}

/* y = x + x, in order. True: it was computed, whatever from. */
static bool compute(struct consumer *c, cw_array *x, cw_array *y, bool *told) {
    int code = cw_array_reading_begin(x, c->stream, LIMIT_NS);
    *told = code == -EOWNERDEAD;
    if (*told)
        return false;
    ok(code, "cw_array_reading_begin of x");
    code = cw_array_writing_begin(y, c->stream, LIMIT_NS);
    bool begun = code != -EOWNERDEAD;
    *told = !begun;
    if (begun) {
        ok(code, "cw_array_writing_begin of y");
        test_add(c->stream, at(y), at(x), at(x), WORDS);
        code = cw_array_writing_end(y, c->stream, 1);
        *told = code == -EOWNERDEAD;
        if (!*told)
            ok(code, "cw_array_writing_end of y");
    }
    int ended = cw_array_reading_end(x, c->stream);
    if (ended != -EOWNERDEAD)
        ok(ended, "cw_array_reading_end of x");
    *told = *told || ended == -EOWNERDEAD;
    return begun;
}

static void judge(bool told, uint32_t value, uint32_t factor, const char *what) {
    bool whole = part->moment == AFTER_WORK, either = part->moment == ANY_TIME;
    if (!either && told == whole)
        test_fail("job %d round %d (killed %s%s): who read %s was %s", board->job, round_now,
                  moment_names[part->moment], part->forks ? ", a child lives" : "", what,
                  told ? "told a death, but it was complete" : "told nothing");
    if (!told && value != FIRST * factor && !(either && value >= LOOP_BEGIN * factor))
        test_fail("job %d round %d (killed %s): %s holds %u", board->job, round_now,
                  moment_names[part->moment], what, value);
}

static void first_consumer(struct consumer *c) {
    bool told;
    cw_array *x = get(c->client, "x"), *y = make(c->client);
    bool computed = compute(c, x, y, &told);
    if (computed)
        put(y, "y");
    atomic_store(&board->computed, computed ? 1 : 2);
    test_finish(c->stream);
    told = told_next(c) || told;
    judge(told, FIRST, 1, "x");
    cw_array_close(x);
    cw_array_close(y);
}

static void second_consumer(struct consumer *c) {
    uint32_t value = FIRST;
    cw_array *x = get(c->client, "x");
    bool told = look(c, x, &value);
    judge(told, value, 1, "x");
    cw_array_close(x);
    int64_t end_ns = test_now_ns() + ROUND_NS;
    while (!atomic_load(&board->computed)) {
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d: no word from the first consumer", board->job, round_now);
        pause_ns(100000);
    }
}

static void look_at_result(struct consumer *c) {
    uint32_t value = 2 * FIRST;
    if (board->computed == 2)
        return;
    cw_array *y = get(c->client, "y");
    bool told = look(c, y, &value);
    judge(told, value, 2, "y, computed from x,");
    cw_array_close(y);
}

static void remove_names(struct consumer *c) {
    static const char *const all[] = {"good", "x", "y"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        name_of(name, all[i]);
        int code = cw_remove(c->client, name);
        if (code != -ENOENT)
            ok(code, "cw_remove");
    }
}

/* False: there are no more. */
static bool await_round(int round) {
    int64_t end_ns = test_now_ns() + ROUND_NS;
    int now;
    while ((now = atomic_load(&board->round)) != round && now >= 0) {
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d: it does not begin", board->job, round);
        pause_ns(100000);
    }
    return now == round;
}

static void consume(int which, int rounds) {
    struct consumer c;
    uint32_t value;
    test_cuda_start();
    c.stream = test_stream();
    CU(cuMemAlloc(&c.copy, WORDS * 4));
    CU(cuMemHostAlloc((void **)&c.host, WORDS * 4, 0));
    ok(cw_connect(NULL, NULL, 0, &c.client), "cw_connect");
    for (int round = 1; round <= rounds; round++) {
        round_now = round;
        if (!await_round(round))
            break;
        part = &board->parts[round % AHEAD];
        c.good = get(c.client, "good");
        if (which == 0)
            first_consumer(&c);
        else {
            second_consumer(&c);
            look_at_result(&c);
        }
        if (look(&c, c.good, &value) || value != GOOD)
            test_fail("job %d round %d: what was complete is no good any more", board->job, round);
        cw_array_close(c.good);
        atomic_store(&board->done[which], round);
        if (which == 0) {
            await(&board->done[1], round, "the second consumer");
            remove_names(&c);
        }
    }
    await(&board->round, -1, "the end of the job");
    cw_client_unref(c.client);
    _exit(0);
}

/* ---- a job ---- */

static void check_alive(pid_t pid) {
    int status;
    if (waitpid(pid, &status, WNOHANG) == pid)
        test_fail("job %d round %d: a process ended with 0x%x", board->job, round_now, status);
}

/* Sends a producer on its way to the round. */
static void start_producer(struct chance *chance, int round) {
    struct part *of = &board->parts[round % AHEAD];
    of->round = round;
    of->begun_ns = test_now_ns();
    of->moment = (enum moment)chance_below(chance, MOMENTS);
    of->forks = chance_below(chance, 2);
    of->late_ms = (unsigned[]){0, 1, 5}[chance_below(chance, 3)];
    atomic_store(&of->go, 0);
    atomic_store(&of->warm, 0);
    atomic_store(&of->ready, 0);
    atomic_store(&of->child, 0);
    pid_t pid = fork_tied();
    if (pid == 0) {
        part = of;
        round_now = round;
        produce();
    }
    of->pid = pid;
}

static void end_producer(pid_t pid) {
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0)
        ;
}

static void await_ready(void) {
    int64_t end_ns = test_now_ns() + ROUND_NS;
    bool warm = false;
    atomic_store(&part->go, 1);
    while (!atomic_load(&part->ready)) {
        if (!warm && atomic_load(&part->warm)) {
            warm = true;
            figures->start_us += (test_now_ns() - part->begun_ns) / 1000;
        }
        check_alive(part->pid);
        if (test_now_ns() > end_ns)
            test_fail("job %d: no producer in time", board->job);
        pause_ns(100000);
    }
    if (!warm)
        figures->start_us += (test_now_ns() - part->begun_ns) / 1000;
}

static void play(struct chance *chance, int round, const pid_t consumers[2]) {
    bool early = chance_below(chance, 2); /* consumers begin before the death */
    int64_t end_ns = test_now_ns() + ROUND_NS;
    part = &board->parts[round % AHEAD];
    atomic_store(&board->computed, 0);
    round_now = round;
    await_ready();
    if (early) {
        atomic_store(&board->round, round);
        pause_ns((int64_t)chance_below(chance, 5000000));
    }
    int64_t killed_ns = test_now_ns();
    end_producer(part->pid);
    figures->kills++;
    atomic_store(&board->round, round);
    while (atomic_load(&board->done[0]) != round || atomic_load(&board->done[1]) != round) {
        check_alive(consumers[0]);
        check_alive(consumers[1]);
        if (test_now_ns() > end_ns)
            test_fail("job %d round %d (killed %s%s): a consumer hangs", board->job, round,
                      moment_names[part->moment], part->forks ? ", a child lives" : "");
        pause_ns(100000);
    }
    figures->told_us += (test_now_ns() - killed_ns) / 1000;
    if (part->child)
        kill(part->child, SIGKILL);
}

static void run_job(int job, int rounds, int64_t end_ns) {
    pid_t consumers[2];
    struct chance chance = {chance_seed() + (uint64_t)job * 7919};
    int started = 0, round = 1;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board->job = job;
    for (int i = 0; i < 2; i++) {
        consumers[i] = fork_tied();
        if (consumers[i] == 0)
            consume(i, rounds);
    }
    for (; round <= rounds && test_now_ns() < end_ns; round++) {
        while (started < rounds && started < round + AHEAD - 1)
            start_producer(&chance, ++started);
        play(&chance, round, consumers);
    }
    atomic_store(&board->round, -1);
    for (; round <= started; round++) /* whose turn did not come */
        end_producer(board->parts[round % AHEAD].pid);
    for (int i = 0; i < 2; i++) {
        int status;
        while (waitpid(consumers[i], &status, 0) < 0)
            ;
        if (status)
            test_fail("job %d: a consumer ended with 0x%x", job, status);
    }
    _exit(0);
}

/* ---- all ---- */

static uint64_t *free_bytes; /* shared */

static uint64_t measure(void) {
    pid_t pid = fork();
    if (pid == 0) {
        size_t unused, total;
        test_cuda_start();
        CU(cuMemGetInfo(&unused, &total));
        *free_bytes = unused;
        _exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        ;
    if (status)
        test_fail("asking for the free memory failed");
    return *free_bytes;
}

/* What nvidia-smi says is in use, of all GPUs; -1: it is not here. */
static long smi_mib(void) {
    long sum = -1, mib;
    FILE *told = test_cuda_is_real() ? popen("nvidia-smi --query-gpu=memory.used "
                                             "--format=csv,noheader,nounits 2>/dev/null",
                                             "r")
                                     : NULL;
    while (told && fscanf(told, "%ld", &mib) == 1)
        sum = (sum < 0 ? 0 : sum) + mib;
    if (told)
        pclose(told);
    return sum;
}

static void check_memory(uint64_t before, long smi_before) {
    uint64_t after = 0;
    long smi_after = -1;
    for (int tries = 0; tries < 40 && (after != before || smi_after > smi_before); tries++) {
        pause_ns(500000000);
        after = measure();
        smi_after = smi_mib();
    }
    if (after != before)
        test_fail("%llu bytes of GPU memory were free, %llu are", (unsigned long long)before,
                  (unsigned long long)after);
    if (smi_after > smi_before)
        test_fail("nvidia-smi said that %ld MiB were in use, and says %ld", smi_before, smi_after);
    if (smi_before >= 0)
        printf("fence_deaths: nvidia-smi: %ld MiB in use before, %ld after\n", smi_before,
               smi_after);
}

static int number(const char *text, int otherwise) {
    int value = text ? atoi(text) : otherwise;
    return value > 0 ? value : otherwise;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/causeway-deaths-XXXXXX", card[64], command[96];
    int rounds = number(argc > 1 ? argv[1] : NULL, (int)test_rounds(64));
    int jobs = number(argc > 2 ? argv[2] : NULL, 2);
    int limit_s = number(argc > 3 ? argv[3] : NULL, 86400);
    cw_client *client;
    chance_seed();
    if (!mkdtemp(folder))
        test_fail("mkdtemp: %m");
    snprintf(card, sizeof card, "%s/card", folder);
    mkdir(card, 0700);
    setenv("CAUSEWAY_DIR", folder, 1);
    test_cuda_choose(argv[0], card);
    free_bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    figures =
        mmap(NULL, sizeof *figures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long smi_before = smi_mib();
    uint64_t before = measure();
    int64_t begun_ns = test_now_ns();
    for (int job = 0; job < jobs; job++)
        if (fork_tied() == 0)
            run_job(job, (rounds + jobs - 1 - job) / jobs, begun_ns + limit_s * 1000000000ll);
    int failed = 0, status;
    for (int job = 0; job < jobs; job++) {
        while (wait(&status) < 0)
            ;
        failed += status != 0;
    }
    if (failed)
        test_fail("%d of %d jobs failed; the broker's log is in %s", failed, jobs, folder);
    double seconds = (double)(test_now_ns() - begun_ns) / 1e9;
    ok(cw_connect(NULL, NULL, 0, &client), "cw_connect");
    if (smi_before < 0)
        check_memory(before, -1);
    ok(cw_broker_stop(client), "cw_broker_stop");
    cw_client_unref(client);
    if (smi_before >= 0) /* with the broker gone nothing may be left at all */
        check_memory(before, smi_before);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        test_fail("%s failed", command);
    int kills = atomic_load(&figures->kills);
    printf("fence_deaths: %d producers killed, %d at once, %s: every consumer told, none hung, no "
           "byte of GPU memory left\n",
           kills, jobs, test_cuda_is_real() ? "on a real GPU" : "on the test double");
    printf(
        "fence_deaths: %.1f s, %.0f ms a death; a producer is at its GPU after %.0f ms, consumers "
        "are through %.0f ms after its death\n",
        seconds, seconds * 1e3 / (kills ? kills : 1),
        (double)figures->start_us / 1e3 / (kills ? kills : 1),
        (double)figures->told_us / 1e3 / (kills ? kills : 1));
    if (kills < rounds)
        printf("fence_deaths: %d were asked for: the %d s were over\n", rounds, limit_s);
    return kills ? 0 : 1;
}
