/*
 * A storm of deaths: clients that put, get, replace, remove, wait, hand over and fork at random are
 * killed with SIGKILL at random. 300 kills, 10,000 with make soak (or CABLEWAY_STORM_KILLS, or the
 * first argument).
 *
 * While it lasts: whatever a client gets is whole and stays as it is while it holds it (an array is
 * one byte repeated; memory used again while it is held would show). At the end: nothing is left of
 * the dead. No client, transit, slab or byte in the monitor page, no descriptor in the broker's
 * /proc more than before the first client, and the broker ends cleanly.
 */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "shm/base/error.h"
#include "tests/crash/support/neighbour.h"
#include "tests/crash/support/world.h"
#include "tests/support.h"

#define WORKERS     5
#define NAMES       12
#define HELD        6
#define BROKEN      9     /* exit status of a worker that found something wrong */
#define LINGER      40    /* ms that a forked child of a worker lives at most */
#define CLEAN_LOOKS 20000 /* about 1 ms each: transits have to run out first */

/* Counted by all, in shared memory: kill never loses more than one. */
enum tally { PUTS, GETS, REMOVES, HANDED, OPENED, WAITS, FORKS, CONNECTS, MISSES, WRITES, TALLIES };
static const char *const tally_names[] = {"puts",   "gets",          "removes", "handed over",
                                          "opened", "waits",         "forks",   "connects",
                                          "misses", "private writes"};
static cw_a64 *tally;

static struct world world;
static int mailbox[2]; /* datagrams: handles on their way from worker to worker */

struct letter {
    cw_handle handle;
    int64_t shape;
};

/* ---- a worker ---- */

struct worker {
    cw_client *client;
    struct chance chance;
    struct {
        cw_array *array;
        uint8_t byte;
    } held[HELD];
};

static _Noreturn void broken(const char *what) {
    printf("# worker %d: %s: %s\n", (int)getpid(), what, cw_error());
    fflush(stdout);
    _exit(BROKEN);
}

/* A code that a worker may meet: what others do to the names, limits, and nothing else. */
static bool expected(int code) {
    return code == -ENOENT || code == -ESTALE || code == -ETIMEDOUT || code == -EEXIST;
}

static void check(const cw_array *array, uint8_t byte) {
    const uint8_t *data = cw_array_data(array);
    uint64_t size = cw_array_nbytes(array);
    for (uint64_t i = 0; i<size; i += size> 8192 ? 509 : 1)
        if (data[i] != byte)
            broken("an array changed while it was held");
    if (size && data[size - 1] != byte)
        broken("the end of an array changed while it was held");
}

static void let_go(struct worker *w, unsigned slot) {
    if (!w->held[slot].array)
        return;
    check(w->held[slot].array, w->held[slot].byte);
    cw_array_close(w->held[slot].array);
    w->held[slot].array = NULL;
}

static void hold(struct worker *w, cw_array *array) {
    unsigned slot = (unsigned)chance_below(&w->chance, HELD);
    uint8_t byte = cw_array_nbytes(array) ? *(uint8_t *)cw_array_data(array) : 0;
    check(array, byte);
    let_go(w, slot);
    w->held[slot].array = array;
    w->held[slot].byte = byte;
}

static const char *some_name(struct worker *w) {
    static char name[32];
    snprintf(name, sizeof name, "storm/%d", (int)chance_below(&w->chance, NAMES));
    return name;
}

static void reconnect(struct worker *w) {
    for (unsigned i = 0; i < HELD; i++)
        let_go(w, i);
    cw_client_unref(w->client);
    w->client = NULL;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &w->client) != 0)
        broken("connect");
    atomic_fetch_add(&tally[CONNECTS], 1);
}

static void act_put(struct worker *w) {
    uint64_t size = chance_below(&w->chance, 40) == 0  ? 3000000
                    : chance_below(&w->chance, 3) == 0 ? chance_below(&w->chance, 100000) + 1
                                                       : chance_below(&w->chance, 3000) + 1;
    const int64_t shape = (int64_t)size;
    cw_layout layout = world_bytes(&shape);
    cw_array *array;
    if (cw_array_new(w->client, "cpu", &layout, 0, &array) != 0)
        broken("new");
    memset(cw_array_data(array), (int)chance_next(&w->chance), size);
    uint32_t flags = (chance_below(&w->chance, 4) ? CW_REPLACE : 0) |
                     (chance_below(&w->chance, 4) ? 0 : CW_KEEP);
    int code = cw_array_put(array, some_name(w), flags, NULL, 0);
    if (code && !expected(code))
        broken("put");
    atomic_fetch_add(&tally[PUTS], 1);
    hold(w, array);
}

/* Others who hold the same memory would see it if a private view were not one. */
static void write_if_private(struct worker *w, cw_array *array, uint32_t flags) {
    uint64_t size = cw_array_nbytes(array);
    if (flags != CW_PRIVATE || size == 0 || chance_below(&w->chance, 3) == 0)
        return;
    check(array, *(uint8_t *)cw_array_data(array));
    memset(cw_array_data(array), (int)chance_next(&w->chance), size);
    atomic_fetch_add(&tally[WRITES], 1);
}

static void act_get(struct worker *w) {
    static const uint32_t ways[] = {0, CW_READONLY, CW_PRIVATE};
    uint32_t flags = ways[chance_below(&w->chance, 3)];
    cw_array *array;
    int code = cw_get(w->client, some_name(w), flags, &array);
    if (code == 0) {
        write_if_private(w, array, flags);
        hold(w, array);
    }
    if (code && !expected(code))
        broken("get");
    atomic_fetch_add(&tally[code ? MISSES : GETS], 1);
}

static void act_hand_over(struct worker *w) {
    unsigned slot = (unsigned)chance_below(&w->chance, HELD);
    struct letter letter;
    memset(&letter, 0, sizeof letter);
    if (!w->held[slot].array)
        return;
    int openers = chance_below(&w->chance, 2) ? 1 : (int)chance_below(&w->chance, 5) - 1;
    int code = cw_array_export(w->held[slot].array, openers, &letter.handle);
    if (code == -EINVAL) /* a private one */
        return;
    if (code)
        broken("export");
    letter.shape = (int64_t)cw_array_nbytes(w->held[slot].array);
    if (chance_below(&w->chance, 8) == 0) /* and some letters are lost */
        return;
    /* For several: so many, or fewer, or more than were said. */
    uint64_t copies = openers == 1 ? 1 : 1 + chance_below(&w->chance, 4);
    for (; copies > 0; copies--) {
        if (send(mailbox[0], &letter, sizeof letter, MSG_DONTWAIT) != sizeof letter) {
            cw_handle_discard(w->client, &letter.handle);
            return;
        }
        atomic_fetch_add(&tally[HANDED], 1);
    }
}

static void act_open(struct worker *w) {
    struct letter letter;
    if (recv(mailbox[1], &letter, sizeof letter, MSG_DONTWAIT) != sizeof letter)
        return;
    if (chance_below(&w->chance, 5) == 0) {
        bool all = chance_below(&w->chance, 2);
        if ((all ? cw_handle_discard : cw_handle_skip)(w->client, &letter.handle) != 0)
            broken("discard");
        return;
    }
    cw_layout layout = world_bytes(&letter.shape);
    cw_array *array;
    uint32_t flags = chance_below(&w->chance, 2) ? CW_PRIVATE : 0;
    int code = cw_array_open(w->client, &letter.handle, &layout, flags, &array);
    if (code == 0) {
        write_if_private(w, array, flags);
        hold(w, array);
        atomic_fetch_add(&tally[OPENED], 1);
    } else if (!expected(code)) {
        broken("open");
    }
}

static void act_wait(struct worker *w) {
    int code = cw_wait(w->client, some_name(w), (int64_t)chance_below(&w->chance, 2000000));
    if (code && !expected(code))
        broken("wait");
    atomic_fetch_add(&tally[WAITS], 1);
}

/* A forked child uses what it inherited, connects anew or not, and ends or is killed. */
static void act_fork(struct worker *w) {
    atomic_fetch_add(&tally[FORKS], 1);
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return; /* the storm reaps it */
    w->chance = chance_init((uint64_t)getpid());
    usleep((unsigned)chance_below(&w->chance, LINGER * 500));
    for (unsigned i = 0; i < HELD; i++)
        if (w->held[i].array)
            check(w->held[i].array, w->held[i].byte);
    cw_client *own = NULL;
    if (chance_below(&w->chance, 2) && cw_connect(NULL, NULL, CW_CONNECT_NO_START, &own) == 0)
        for (unsigned i = 0; i < HELD; i++)
            if (w->held[i].array && cw_array_renew(w->held[i].array, own) == 0)
                check(w->held[i].array, w->held[i].byte);
    usleep((unsigned)chance_below(&w->chance, LINGER * 500));
    if (chance_below(&w->chance, 3) == 0)
        kill(getpid(), SIGKILL);
    for (unsigned i = 0; i < HELD; i++)
        let_go(w, i);
    cw_client_unref(own);
    _exit(0);
}

static void act(struct worker *w) {
    uint64_t pick = chance_below(&w->chance, 100);
    int code;
    if (pick < 30)
        act_get(w);
    else if (pick < 50)
        act_put(w);
    else if (pick < 62)
        let_go(w, (unsigned)chance_below(&w->chance, HELD));
    else if (pick < 72)
        act_hand_over(w);
    else if (pick < 82)
        act_open(w);
    else if (pick < 88) {
        code = cw_remove(w->client, some_name(w));
        if (code && !expected(code))
            broken("remove");
        atomic_fetch_add(&tally[REMOVES], 1);
    } else if (pick < 93)
        act_wait(w);
    else if (pick < 94)
        act_fork(w);
    else if (pick < 95)
        reconnect(w);
    else
        for (unsigned i = 0; i < HELD; i++)
            if (w->held[i].array)
                check(w->held[i].array, w->held[i].byte);
}

static pid_t worker_start(uint64_t number) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static struct worker w;
    w.chance = chance_init(number + 1000);
    reconnect(&w);
    for (;;)
        act(&w);
}

/* ---- the storm ---- */

static void fail(const char *what) {
    world_print(&world);
    printf("not ok 1 - a storm of deaths: %s\n", what);
    fflush(NULL);
    _exit(1);
}

/* What a reaped process was: a worker that found something wrong ends the test. */
static void judge(int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return;
    printf("# a process ended with status %#x\n", (unsigned)status);
    usleep(100000);
    fail(world_alive(&world) ? "a client found something wrong" : "the broker ended");
}

static void reap_until(pid_t wanted) {
    int status;
    pid_t pid;
    do {
        pid = waitpid(-1, &status, wanted ? 0 : WNOHANG);
        if (pid > 0 && pid == world.broker) {
            printf("# the broker's status is %#x\n", (unsigned)status);
            fail("the broker ended");
        }
        if (pid > 0)
            judge(status);
    } while (pid > 0 && pid != wanted);
}

static void storm(uint64_t kills) {
    struct chance chance = chance_init(1);
    pid_t workers[WORKERS];
    uint64_t number = 0;
    for (int i = 0; i < WORKERS; i++)
        workers[i] = worker_start(number++);
    for (uint64_t n = 0; n < kills; n++) {
        usleep((unsigned)chance_below(&chance, 12000));
        int victim = (int)chance_below(&chance, WORKERS);
        kill(workers[victim], SIGKILL);
        reap_until(workers[victim]);
        workers[victim] = worker_start(number++);
    }
    for (int i = 0; i < WORKERS; i++) {
        kill(workers[i], SIGKILL);
        reap_until(workers[i]);
    }
    /* their children end by themselves; we are the subreaper */
    usleep(3 * LINGER * 1000);
}

static bool nothing_left(int fds, uint64_t own_clients) {
    reap_until(0);
    return world_gauge(&world, CW_GAUGE_clients) == own_clients &&
           world_gauge(&world, CW_GAUGE_names) == 0 && world_gauge(&world, CW_GAUGE_slabs) == 0 &&
           world_gauge(&world, CW_GAUGE_orphan_slabs) == 0 &&
           world_gauge(&world, CW_GAUGE_bytes) == 0 &&
           world_gauge(&world, CW_GAUGE_transits) == 0 &&
           world_gauge(&world, CW_GAUGE_waiting) == 0 && world_fds(&world) <= fds;
}

/* Removes all names from a process of its own, which then ends. */
static int remove_names(void *unused) {
    (void)unused;
    cw_client *client;
    char *names;
    uint64_t count;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0 ||
        cw_names(client, "", &names, &count) != 0)
        return 1;
    const char *name = names;
    for (uint64_t i = 0; i < count; i++, name += strlen(name) + 1)
        if (cw_remove(client, name) != 0)
            return 2;
    cw_free(names);
    cw_client_unref(client);
    return 0;
}

int main(int argc, char **argv) {
    const char *asked = argc > 1 ? argv[1] : getenv("CABLEWAY_STORM_KILLS");
    uint64_t kills = asked ? strtoull(asked, NULL, 10) : getenv("CABLEWAY_SOAK") ? 10000 : 300;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    setenv("CABLEWAY_TRANSIT_SECONDS", "2", 1);
    setenv("CABLEWAY_PICKLE_SECONDS", "1", 1);
    world_start(&world);
    tally = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CW_ASSERT(tally != MAP_FAILED);
    CW_ASSERT(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, mailbox) == 0);
    CW_ASSERT(in_child(remove_names, NULL) == 0); /* one client comes and goes: all is warm */
    if (!WORLD_UNTIL(nothing_left(INT_MAX, 0), 5000))
        fail("the broker does not come to rest before the storm");
    usleep(200000);
    int fds = world_fds(&world);
    chance_seed();
    int64_t begun_ns = test_now_ns();
    storm(kills);
    CW_ASSERT(in_child(remove_names, NULL) == 0);
    if (!WORLD_UNTIL(nothing_left(fds, 0), CLEAN_LOOKS))
        fail("something of the dead is left");
    printf("# %llu kills in %.1f s:", (unsigned long long)kills,
           (double)(test_now_ns() - begun_ns) / 1e9);
    for (int i = 0; i < TALLIES; i++)
        printf(" %s %llu,", tally_names[i], (unsigned long long)atomic_load(&tally[i]));
    printf(" blocks reclaimed %llu, slabs adopted %llu, clients dropped %llu\n",
           (unsigned long long)world_counter(&world, CW_COUNTER_blocks_reclaimed),
           (unsigned long long)world_counter(&world, CW_COUNTER_slabs_adopted),
           (unsigned long long)world_counter(&world, CW_COUNTER_clients_dropped));
    printf("# descriptors of the broker: %d before, %d after\n", fds, world_fds(&world));
    world_print(&world);
    if (world_counter(&world, CW_COUNTER_clients_dropped))
        fail("a well-behaved client was dropped");
    world_stop(&world);
    printf("ok 1 - a storm of deaths leaves nothing behind\n1..1\n");
    return 0;
}
