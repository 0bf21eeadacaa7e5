/*
 * A walk at random through the local protocol: four clients at a time that lie (liar.h), and are
 * killed at random moments.
 *
 * While it lasts a well-behaved neighbour goes on within its limit and finds its arrays whole. At
 * the end nothing of the dead is left: no client, transit, wait, orphan or descriptor, and the
 * broker ends cleanly. What is wrong inside of it, AddressSanitizer tells, with which `make
 * test-more` and `make soak` run this (tests/protocol.sh).
 *
 * For 5 s, or CABLEWAY_PROTOCOL_SECONDS. What one client does follows from the seed and its number,
 * which are printed; what meets what does not.
 */
#include <signal.h>
#include <sys/mman.h>

#include "shm/base/error.h"
#include "tests/crash/support/liar.h"
#include "tests/crash/support/neighbour.h"
#include "tests/crash/support/world.h"
#include "tests/support.h"

#define ACTORS      4
#define REST_LOOKS  20000 /* about 1 ms each */
#define CHECK_LOOKS 20    /* between two looks at the neighbour */

static struct world world;
static struct neighbour neighbour;
static struct raw_broker broker; /* only its address: what raw_connect() needs */
static struct liar_board *board;

struct actor {
    pid_t pid;
    uint64_t number;
    int64_t end_ns; /* when it is killed */
};

static int show_names(void *unused) {
    (void)unused;
    cw_client *one;
    char *names;
    uint64_t count;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &one) != 0 ||
        cw_names(one, "", &names, &count) != 0)
        return 1;
    const char *found = names;
    for (uint64_t i = 0; i < count; i++, found += strlen(found) + 1)
        printf("# a name is left: %s\n", found);
    fflush(stdout);
    return 0;
}

/* What is left comes last: the runner shows the end of a long output. */
static _Noreturn void fail(const char *what) {
    printf("not ok 1 - %s\n1..1\n", what);
    fflush(stdout);
    char command[300];
    snprintf(command, sizeof command, "tail -n 20 %s/foreground.out | sed 's/^/# /'", world.folder);
    if (system(command) != 0)
        printf("# no output of the broker\n");
    if (in_child(show_names, NULL) != 0)
        printf("# its names could not be listed\n");
    fflush(stdout);
    world_print(&world);
    world_kill(&world);
    exit(1);
}

static void look_at_neighbour(void) {
    if (!world_alive(&world))
        fail("the broker ended");
    int code = neighbour_ask(&neighbour, NEIGHBOUR_LIVE);
    if (code != 0) {
        printf("# neighbour: %d\n", code);
        fail("the neighbour was held up, or found something changed");
    }
}

static void begin(struct actor *actor, uint64_t number, struct chance *moments) {
    fflush(NULL);
    actor->number = number;
    actor->end_ns = test_now_ns() + (int64_t)chance_below(moments, LIAR_LIFE_MS * 1000000ull);
    actor->pid = fork();
    CW_ASSERT(actor->pid >= 0);
    if (actor->pid == 0)
        liar_live(&broker, board, number);
    atomic_fetch_add(&board->lives, 1);
}

static void walk(double seconds) {
    struct actor actors[ACTORS] = {0};
    struct chance moments = chance_init(0);
    int64_t end_ns = test_now_ns() + (int64_t)(seconds * 1e9);
    uint64_t number = 0;
    for (int look = 0; test_now_ns() < end_ns; look++) {
        for (int i = 0; i < ACTORS; i++) {
            if (actors[i].pid && test_now_ns() > actors[i].end_ns)
                kill(actors[i].pid, SIGKILL);
            if (!actors[i].pid || waitpid(actors[i].pid, NULL, WNOHANG) == actors[i].pid)
                begin(&actors[i], ++number, &moments);
        }
        if (look % CHECK_LOOKS == 0)
            look_at_neighbour();
        world_pause();
    }
    for (int i = 0; i < ACTORS; i++) {
        kill(actors[i].pid, SIGKILL);
        waitpid(actors[i].pid, NULL, 0);
    }
}

/* Removes all names of theirs. Some are shorter than meant. */
static int sweep(void *unused) {
    (void)unused;
    cw_client *one;
    char *names;
    uint64_t count;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &one) != 0 ||
        cw_names(one, "", &names, &count) != 0)
        return 1;
    const char *found = names;
    for (uint64_t i = 0; i < count; i++, found += strlen(found) + 1)
        if (found[0] == 'n' && cw_remove(one, found) != 0)
            return 2;
    cw_free(names);
    cw_client_unref(one);
    return 0;
}

static bool at_rest(int fds) {
    return world_gauge(&world, CW_GAUGE_clients) == 1 &&
           world_gauge(&world, CW_GAUGE_orphan_slabs) == 0 &&
           world_gauge(&world, CW_GAUGE_transits) == 0 &&
           world_gauge(&world, CW_GAUGE_waiting) == 0 && world_fds(&world) <= fds;
}

int main(void) {
    const char *given = getenv("CABLEWAY_PROTOCOL_SECONDS");
    double seconds = given ? strtod(given, NULL) : 5;
    setenv("CABLEWAY_TRANSIT_SECONDS", "1", 1);
    setenv("CABLEWAY_PICKLE_SECONDS", "1", 1);
    setenv("CABLEWAY_MOVER", "/bin/false", 1); /* they would stay, as clients */
    setenv("CABLEWAY_BRIDGE", "/bin/false", 1);
    chance_seed();
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CW_ASSERT(board != MAP_FAILED);
    world_start(&world);
    neighbour_start(&neighbour);
    CW_ASSERT(cw_address_find(NULL, &broker.address) == 0);
    for (int i = 0; i < 3; i++)
        look_at_neighbour();
    usleep(100000);
    int fds = world_fds(&world);
    walk(seconds);
    /* What a dead one had asked for is done while it is looked at. */
    int rounds = REST_LOOKS / 100;
    while (in_child(sweep, NULL) == 0 && !WORLD_UNTIL(at_rest(fds), 100))
        if (rounds-- == 0) {
            world_print(&world); /* what is left */
            world_print_fds(&world);
            printf("# descriptors of the broker: %d before\n", fds);
            fail("something of the dead is left");
        }
    look_at_neighbour();
    printf("# %.0f s: %llu clients, %llu requests, %llu lies, %llu refused, %llu done, %llu "
           "dropped; the neighbour's longest "
           "wait: %.1f ms\n",
           seconds, (unsigned long long)atomic_load(&board->lives),
           (unsigned long long)atomic_load(&board->requests),
           (unsigned long long)atomic_load(&board->lies),
           (unsigned long long)atomic_load(&board->refused),
           (unsigned long long)atomic_load(&board->done),
           (unsigned long long)world_counter(&world, CW_COUNTER_clients_dropped),
           (double)neighbour.worst_ns / 1e6);
    world_print(&world);
    printf("# descriptors of the broker: %d before, %d after\n", fds, world_fds(&world));
    if (!atomic_load(&board->done) || !atomic_load(&board->refused) || !atomic_load(&board->lies))
        fail("nothing was tried");
    neighbour_stop(&neighbour);
    world_stop(&world);
    printf("ok 1 - clients that lie and die leave the broker as it was\n1..1\n");
    return 0;
}
