/*
 * World: see world.h. One process, the test's main one, owns it; the broker dies with that process.
 */
#include "tests/crash/support/world.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/request/address.h"
#include "tests/support.h"

#define START_LOOKS 10000

static _Noreturn void give_up(const struct world *world, const char *what) {
    printf("Bail out! %s (folder %s)\n", what, world->folder);
    fflush(NULL);
    exit(1);
}

void world_pause(void) {
    struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
}

const char *world_program(void) {
    static char path[PATH_MAX + 32];
    const char *given = getenv("CABLEWAY_BROKER");
    if (given)
        return given;
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    for (int up = 0; length > 0 && up < 3; up++) /* BUILD/tests/crash/NAME */
        while (length > 0 && path[--length] != '/')
            ;
    strcpy(path + length, "/cablewayd");
    setenv("CABLEWAY_BROKER", path, 1);
    return path;
}

void world_folder(struct world *world) {
    *world = (struct world){.folder = "/tmp/cw-crash-XXXXXX"};
    if (!mkdtemp(world->folder))
        give_up(world, "no folder for the broker");
    setenv("CABLEWAY_DIR", world->folder, 1);
    setenv("CABLEWAY_NAMESPACE", "", 1);
}

bool world_attach(struct world *world) {
    struct cw_address address;
    struct cw_lock_line line;
    int folder_fd;
    if (cw_address_find(NULL, &address) != 0 ||
        cw_address_open_folder(&address, false, &folder_fd) != 0)
        return false;
    int code = cw_address_read_lock(&address, folder_fd, &line);
    close(folder_fd);
    if (code != 0 || (world->broker && line.pid != world->broker))
        return false;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)line.pid, line.root_fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    void *base = mmap(NULL, sizeof *world->root, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return false;
    if (world->root)
        munmap(world->root, sizeof *world->root);
    world->root = base;
    return true;
}

void world_start_broker(struct world *world) {
    const char *program = world_program();
    char log[200];
    snprintf(log, sizeof log, "%s/foreground.out", world->folder);
    fflush(NULL);
    pid_t parent = getpid();
    world->broker = fork();
    if (world->broker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        execl(program, program, "--foreground", NULL);
        _exit(127);
    }
    if (!WORLD_UNTIL(world_attach(world) || !world_alive(world), START_LOOKS) ||
        !world_alive(world)) {
        char command[300];
        snprintf(command, sizeof command, "cat %s", log);
        if (system(command) != 0)
            printf("no output of the broker in %s\n", log);
        give_up(world, "the broker did not start");
    }
}

void world_start(struct world *world) {
    world_folder(world);
    world_start_broker(world);
}

bool world_alive(struct world *world) {
    int status;
    if (world->broker && waitpid(world->broker, &status, WNOHANG) == world->broker) {
        printf("# the broker ended with status %#x\n", (unsigned)status);
        world->broker = 0;
    }
    return world->broker != 0;
}

void world_kill(struct world *world) {
    if (!world->broker)
        return;
    kill(world->broker, SIGKILL);
    waitpid(world->broker, NULL, 0);
    world->broker = 0;
}

static void remove_folder(struct world *world) {
    DIR *folder = opendir(world->folder);
    struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        (void)unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(world->folder);
}

void world_stop(struct world *world) {
    if (world->broker) {
        int status = 0;
        kill(world->broker, SIGTERM);
        if (!WORLD_UNTIL(waitpid(world->broker, &status, WNOHANG) == world->broker, 10000))
            give_up(world, "the broker did not end at SIGTERM");
        world->broker = 0;
        if (status != 0) {
            char command[300];
            snprintf(command, sizeof command, "tail -n 50 %s/foreground.out", world->folder);
            if (system(command) != 0)
                printf("no output of the broker\n");
            give_up(world, "the broker did not end cleanly at SIGTERM");
        }
    }
    if (world->root)
        munmap(world->root, sizeof *world->root);
    world->root = NULL;
    remove_folder(world);
}

uint64_t world_gauge(const struct world *world, enum cw_gauge which) {
    return atomic_load(&world->root->gauges[which]);
}

uint64_t world_counter(const struct world *world, enum cw_counter which) {
    return atomic_load(&world->root->counters[which]);
}

int world_fds(const struct world *world) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)world->broker);
    DIR *folder = opendir(path);
    int count = 0;
    struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        count += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return count;
}

void world_print_fds(const struct world *world) {
    char path[64], link[300], target[256];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)world->broker);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        snprintf(link, sizeof link, "%s/%.200s", path, entry->d_name);
        ssize_t length = readlink(link, target, sizeof target - 1);
        if (length >= 0)
            printf("# descriptor %s: %.*s\n", entry->d_name, (int)length, target);
    }
    if (folder)
        closedir(folder);
}

void world_print(const struct world *world) {
    printf("# broker:");
    for (int i = 0; i < CW_GAUGE_COUNT; i++)
        printf(" %s %llu", cw_gauge_name(i), (unsigned long long)world_gauge(world, i));
    printf(", %d open descriptors\n", world_fds(world));
    fflush(stdout);
}

bool world_holds_nothing(const struct world *world, int looks) {
    if (WORLD_UNTIL(world_gauge(world, CW_GAUGE_clients) == 0 &&
                        world_gauge(world, CW_GAUGE_slabs) == 0 &&
                        world_gauge(world, CW_GAUGE_names) == 0,
                    looks))
        return true;
    world_print(world);
    return false;
}

cw_layout world_bytes(const int64_t *shape) {
    return (cw_layout){.ndim = 1, .itemsize = 1, .shape = shape, .dtype = "|u1"};
}
