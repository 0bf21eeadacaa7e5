/*
 * A broker of its own for each test: see raw_client.h. It runs in the foreground as our child, in a
 * fresh folder, and dies with us.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tests/unit/raw_client.h"

/* BUILD/tests/unit/PROGRAM -> BUILD/cablewayd, unless CABLEWAY_BROKER names another. */
static const char *program(void) {
    static char path[PATH_MAX + 16];
    const char *given = getenv("CABLEWAY_BROKER");
    if (given && *given)
        return given;
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    path[length > 0 ? length : 0] = 0;
    for (int i = 0; i < 3; i++) {
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = 0;
    }
    strcat(path, "/cablewayd");
    return path;
}

void raw_broker_folder(struct raw_broker *broker) {
    *broker = (struct raw_broker){.root_segment = {.fd = -1}, .errors = -1};
    strcpy(broker->folder, "/tmp/cw-broker-XXXXXX");
    CW_ASSERT(mkdtemp(broker->folder));
    unsetenv("CABLEWAY_CONFIG");
    static const char *const jobs[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"};
    for (unsigned i = 0; i < sizeof jobs / sizeof *jobs; i++)
        unsetenv(jobs[i]);
    CW_ASSERT(cw_address_find(broker->folder, &broker->address) == 0);
}

void raw_broker_spawn(struct raw_broker *broker, const char *const *arguments,
                      const char *const *environment) {
    char *list[16] = {(char *)(uintptr_t)program(), (char[]){"--foreground"}, (char[]){"--dir"},
                      broker->folder};
    int count = 4, ends[2];
    for (; arguments && *arguments && count < 15; arguments++)
        list[count++] = (char *)(uintptr_t)*arguments;
    CW_ASSERT(pipe2(ends, O_CLOEXEC) == 0);
    fflush(NULL);
    broker->pid = fork();
    if (broker->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDERR_FILENO);
        for (; environment && *environment; environment++)
            putenv((char *)(uintptr_t)*environment);
        execv(list[0], list);
        _exit(127);
    }
    close(ends[1]);
    if (broker->errors >= 0)
        close(broker->errors);
    broker->errors = ends[0];
}

static bool map_root(struct raw_broker *broker) {
    struct cw_lock_line line;
    char path[64];
    int folder;
    if (cw_address_open_folder(&broker->address, false, &folder) != 0)
        return false;
    int code = cw_address_read_lock(&broker->address, folder, &line);
    close(folder);
    if (code || line.pid != broker->pid)
        return false;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)line.pid, line.root_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cw_segment_close(&broker->root_segment);
    if (fd < 0 || cw_segment_open(fd, sizeof(struct cw_root), CW_SEGMENT_ROOT, false, 0,
                                  &broker->root_segment) != 0)
        return false;
    broker->root = broker->root_segment.base;
    return broker->root->header.instance == line.instance;
}

bool raw_broker_ready(struct raw_broker *broker) {
    int64_t end_ns = cw_now_ns() + RAW_TIMEOUT_MS * 1000000ll;
    while (cw_now_ns() < end_ns) {
        siginfo_t ended = {.si_pid = 0};
        if (map_root(broker))
            return true;
        if (waitid(P_PID, (id_t)broker->pid, &ended, WEXITED | WNOHANG | WNOWAIT) < 0 ||
            ended.si_pid)
            return false;
        raw_pause();
    }
    return false;
}

bool raw_broker_start(struct raw_broker *broker, const char *const *arguments,
                      const char *const *environment) {
    raw_broker_folder(broker);
    raw_broker_spawn(broker, arguments, environment);
    return raw_broker_ready(broker);
}

int64_t raw_broker_ran_ns(const struct raw_broker *broker) {
    clockid_t clock;
    struct timespec ran;
    CW_ASSERT(clock_getcpuclockid(broker->pid, &clock) == 0 && clock_gettime(clock, &ran) == 0);
    return (int64_t)ran.tv_sec * 1000000000 + ran.tv_nsec;
}

int raw_broker_reap(struct raw_broker *broker, int timeout_ms) {
    int64_t end_ns = cw_now_ns() + timeout_ms * 1000000ll;
    int status;
    do {
        if (waitpid(broker->pid, &status, WNOHANG) == broker->pid) {
            broker->pid = 0;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        raw_pause();
    } while (cw_now_ns() < end_ns);
    return -1;
}

void raw_broker_remove(struct raw_broker *broker) {
    if (broker->pid) {
        kill(broker->pid, SIGKILL);
        raw_broker_reap(broker, RAW_TIMEOUT_MS);
    }
    cw_segment_close(&broker->root_segment);
    if (broker->errors >= 0)
        close(broker->errors);
    DIR *folder = opendir(broker->folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(broker->folder);
}

const char *raw_broker_said(struct raw_broker *broker) {
    struct pollfd poller = {.fd = broker->errors, .events = POLLIN};
    while (broker->said_bytes < sizeof broker->said - 1 && poll(&poller, 1, 0) > 0) {
        ssize_t count = read(broker->errors, broker->said + broker->said_bytes,
                             sizeof broker->said - 1 - broker->said_bytes);
        if (count <= 0)
            break;
        broker->said_bytes += (size_t)count;
    }
    broker->said[broker->said_bytes] = 0;
    return broker->said;
}

uint64_t raw_counter(const struct raw_broker *broker, enum cw_counter which) {
    return CW_LOAD(M1, (cw_a64 *)&broker->root->counters[which], relaxed);
}

bool raw_rests(const struct raw_broker *broker, int ms) {
    uint64_t wakeups = raw_counter(broker, CW_COUNTER_wakeups);
    usleep((useconds_t)ms * 1000);
    return raw_counter(broker, CW_COUNTER_wakeups) == wakeups;
}

uint64_t raw_gauge(const struct raw_broker *broker, enum cw_gauge which) {
    return CW_LOAD(M1, (cw_a64 *)&broker->root->gauges[which], relaxed);
}

int raw_broker_finish(struct raw_broker *broker) {
    bool well =
        raw_broker_reap(broker, 0) == -1 && RAW_UNTIL(raw_gauge(broker, CW_GAUGE_clients) == 0);
    if (!well)
        fprintf(stderr, "broker: %s\n", raw_broker_said(broker));
    raw_broker_remove(broker);
    return well ? 0 : -1;
}
