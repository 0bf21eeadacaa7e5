/*
 * A request to the broker and back (cw_ping), with its adaptive wait, beside 64 bytes over a socket
 * pair. Hot, and after the other side has gone to sleep; the peer is named in each row. The broker
 * and the echoing child are on the other core.
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"
#include "tools/bench/programs/scratch.h"

#define AFTER_SLEEP_US 500u
#define PAYLOAD        64u

static double ping_broker(cw_client *client, int socket, unsigned count) {
    (void)socket;
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < count; i++)
        bench_need(cw_ping(client), "ping");
    return (double)(cw_now_ns() - begun_ns) / count;
}

static double ping_socket(cw_client *client, int socket, unsigned count) {
    (void)client;
    uint64_t out[PAYLOAD / 8] = {0}, back[PAYLOAD / 8];
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < count; i++) {
        CW_ASSERT(send(socket, out, PAYLOAD, 0) == PAYLOAD);
        CW_ASSERT(recv(socket, back, PAYLOAD, 0) == PAYLOAD);
    }
    return (double)(cw_now_ns() - begun_ns) / count;
}

static void echo_socket(int socket) {
    uint64_t copy[PAYLOAD / 8];
    while (recv(socket, copy, PAYLOAD, 0) == PAYLOAD)
        CW_ASSERT(send(socket, copy, PAYLOAD, 0) == PAYLOAD);
    _exit(0);
}

static const struct {
    const char *name;
    double (*ping)(cw_client *, int, unsigned);
} peers[] = {
    {"cw_ping, the broker", ping_broker},
    {"socketpair, 64 bytes", ping_socket},
};
#define PEERS (sizeof peers / sizeof *peers)

static pid_t spawn(int core, int socket) {
    pid_t child = fork();
    CW_ASSERT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench_pin(core);
        echo_socket(socket);
    }
    return child;
}

int main(int argc, char **argv) {
    unsigned rounds = (unsigned)bench_option(argc, argv, "rounds", 501);
    unsigned batch = (unsigned)bench_option(argc, argv, "batch", 100);
    int cores[2], sockets[2];
    bool two = bench_two_cores(cores);
    CW_ASSERT(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets));
    int other = cores[two ? 1 : 0];
    pid_t child = spawn(other, sockets[1]);
    struct scratch scratch;
    scratch_open(&scratch);
    cw_client *client = scratch.client;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(other, &set);
    CW_ASSERT(!sched_setaffinity(cw_client_broker_pid(client), sizeof set, &set));
    bench_pin(cores[0]);
    int pids[PEERS] = {cw_client_broker_pid(client), child};
    struct bench_samples hot[PEERS] = {0}, slept[PEERS] = {0};
    for (unsigned round = 0; round < rounds; round++) {
        for (size_t i = 0; i < PEERS; i++) {
            usleep(AFTER_SLEEP_US);
            double before = bench_cpu_seconds() + bench_cpu_seconds_of(pids[i]);
            bench_add(&slept[i], peers[i].ping(client, sockets[0], 1));
            double between = bench_cpu_seconds() + bench_cpu_seconds_of(pids[i]);
            slept[i].cpu_seconds += between - before;
            bench_add(&hot[i], peers[i].ping(client, sockets[0], batch));
            hot[i].cpu_seconds += bench_cpu_seconds() + bench_cpu_seconds_of(pids[i]) - between;
        }
    }
    for (size_t i = 0; i < PEERS; i++) {
        bench_report("ping", peers[i].name, i == 1 ? "sleeps" : "adaptive", "ns", &hot[i]);
        bench_report("ping after sleep", peers[i].name, "sleeps", "ns", &slept[i]);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    scratch_close(&scratch);
    return 0;
}
