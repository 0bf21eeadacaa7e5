/*
 * Deaths behind fences: a producer is killed before, in and after its GPU work while streams of
 * other processes wait for it; in half of the rounds a forked child of it lives on. In each round
 *   nobody hangs; every consumer whose data are not complete is told so, also the one that reads
 *   what another computed from them; what was complete stays good and is told to be so;
 * and in the end no byte of GPU memory is left. With CABLEWAY_TEST_GPU_SHARED=1 that is not looked
 * at: others use the GPU, too.
 *
 *   fence_deaths [ROUNDS [JOBS [SECONDS [AHEAD]]]]     on the test double; CABLEWAY_TEST_GPU=1: on
 *   a real GPU. After SECONDS no further round is begun, and as many as there were are told.
 *
 * A job is a process with two consumers that live through all its rounds; the producer is a new
 * process each round. What takes time is a producer's way to its GPU (half a second and more), so
 * AHEAD of each job are started or at work, each with its part: what is to become of it. They share
 * a board. The driver makes one context after the other, and the more wait for theirs the longer
 * each takes: on an H200 8 on their way at once gave 3.8 deaths a second (266 ms each), 32 gave 1.7
 * to 2.8, so that without the argument there are 8 of all jobs together, one of each at least. A
 * producer's way is told in its parts: cuInit, the context, the first kernels, what is ours.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "tests/gpu/deaths.h"

struct figures { /* shared by all jobs; sums in microseconds */
    _Atomic int kills;
    _Atomic int64_t ready_us; /* of a round: until its producer is where it is to be killed */
    _Atomic int64_t told_us;  /* from its death until both consumers knew */
    _Atomic int started;      /* producers that came to their GPU, and what that took: */
    _Atomic int64_t start_us, init_us, context_us, kernels_us, ours_us;
};
static struct figures *figures;
static int ahead;

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
    if (part->late_ms && !test_cuda_is_real()) {
        char text[16];
        snprintf(text, sizeof text, "%u", part->late_ms);
        setenv("CABLEWAY_FAKECUDA_LATE_MS", text, 1);
        setenv("CABLEWAY_FAKECUDA_LATE_KEEPS", part->forks ? "1" : "0", 1);
    }
    test_cuda_start();
    int64_t began_ns = test_now_ns();
    CU(cuMemAlloc(&flag, 64));
    CUstream stream = test_stream();
    test_fill(stream, flag, 16, 0);
    ok(cw_connect(NULL, NULL, 0, &client), "cw_connect");
    cw_array *good = make(client), *x = make(client);
    write_all(good, stream, GOOD);
    write_all(x, stream, FIRST);
    ok(cw_array_wait(good, LIMIT_NS), "cw_array_wait");
    ok(cw_array_wait(x, LIMIT_NS), "cw_array_wait");
    figures->started++;
    figures->start_us += (test_now_ns() - part->begun_ns) / 1000;
    figures->init_us += cuda.init_us;
    figures->context_us += cuda.context_us;
    figures->kernels_us += cuda.kernels_us;
    figures->ours_us += (test_now_ns() - began_ns) / 1000;
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
    int64_t begun_ns = test_now_ns();
    atomic_store(&part->go, 1);
    while (!atomic_load(&part->ready)) {
        check_alive(part->pid);
        if (test_now_ns() > begun_ns + ROUND_NS)
            test_fail("job %d: no producer in time", board->job);
        pause_ns(100000);
    }
    figures->ready_us += (test_now_ns() - begun_ns) / 1000;
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
        while (started < rounds && started < round + ahead - 1)
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

static int tell(int rounds, int jobs, int limit_s, bool shared, int64_t begun_ns,
                int64_t ended_ns) {
    int kills = atomic_load(&figures->kills), started = atomic_load(&figures->started);
    double seconds = (double)(ended_ns - begun_ns) / 1e9;
    double each = 1e3 * (kills ? kills : 1), one = 1e3 * (started ? started : 1);
    printf("fence_deaths: %.1f s, %.0f ms a death; of a round %.0f ms until its producer is ready, "
           "%.0f ms from its death until the consumers are through\n",
           seconds, seconds * 1e6 / each, (double)figures->ready_us / each,
           (double)figures->told_us / each);
    printf("fence_deaths: %d producers came to their GPU, each after %.0f ms: cuInit %.0f, context "
           "%.0f, first kernels %.0f, ours %.0f; %d of a job at a time\n",
           started, (double)figures->start_us / one, (double)figures->init_us / one,
           (double)figures->context_us / one, (double)figures->kernels_us / one,
           (double)figures->ours_us / one, ahead);
    if (kills < rounds)
        printf("fence_deaths: %d were asked for: the %d s were over\n", rounds, limit_s);
    printf(
        "fence_deaths: %d producers killed, seed %llu, %d at once, %s: every consumer told, none "
        "hung, %s\n",
        kills, (unsigned long long)chance_seed(), jobs,
        test_cuda_is_real() ? "on a real GPU" : "on the test double",
        shared ? "memory not looked at" : "no byte of GPU memory left");
    return kills ? 0 : 1;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/cableway-deaths-XXXXXX", card[64], command[96];
    int rounds = number(argc > 1 ? argv[1] : NULL, (int)test_rounds(64));
    int jobs = number(argc > 2 ? argv[2] : NULL, 2);
    int limit_s = number(argc > 3 ? argv[3] : NULL, 86400);
    ahead = number(argc > 4 ? argv[4] : NULL, jobs < AHEAD ? AHEAD / jobs : 1);
    cw_client *client;
    chance_seed();
    if (ahead > AHEAD)
        test_fail("AHEAD is 1 to %d", AHEAD);
    if (!mkdtemp(folder))
        test_fail("mkdtemp: %m");
    snprintf(card, sizeof card, "%s/card", folder);
    mkdir(card, 0700);
    setenv("CABLEWAY_DIR", folder, 1);
    test_cuda_choose(argv[0], card);
    free_bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    figures =
        mmap(NULL, sizeof *figures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool shared = getenv("CABLEWAY_TEST_GPU_SHARED") != NULL;
    long smi_before = shared ? -1 : smi_mib();
    uint64_t before = shared ? 0 : measure();
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
    int64_t ended_ns = test_now_ns();
    ok(cw_connect(NULL, NULL, 0, &client), "cw_connect");
    if (!shared && smi_before < 0)
        check_memory(before, -1);
    ok(cw_broker_stop(client), "cw_broker_stop");
    cw_client_unref(client);
    if (smi_before >= 0) /* with the broker gone nothing may be left at all */
        check_memory(before, smi_before);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        test_fail("%s failed", command);
    return tell(rounds, jobs, limit_s, shared, begun_ns, ended_ns);
}
