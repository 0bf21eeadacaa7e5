/*
 * A walk over cableway.h, in one process and its children, with a broker: what `make faults` makes
 * calls fail in.
 *
 * Invariants: without a failing call no call of the walk fails. With one, a call that fails tells
 * so by its code and a sentence ("told ..." is printed), changes nothing, and succeeds when it is
 * made again; whatever is read is right; and at the end this process has the descriptors that it
 * had at the beginning. Exit 0: so it was; 1: it was not, and "wrong ..." says what. Parts are
 * chosen by name; none given: all.
 *
 * It never sleeps and has no time limit of its own: tests/faults/faults.py has.
 */
#include "tests/faults/walk.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length > 0 && write(STDOUT_FILENO, line, (size_t)length) < 0)
        _exit(2);
}

_Noreturn void walk_wrong(int line, const char *what, int code) {
    say("wrong %d %d %s: %s\n", line, code, what, cw_error());
    _exit(1);
}

void walk_told(int line, const char *call, int code) {
    static const int plain[] = {-EDQUOT, -EINTR, -EINPROGRESS, -ECONNRESET};
    bool known = false;
    for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++)
        known |= code == plain[i];
    say("told %d %d %s: %s\n", line, code, call, cw_error());
    if (!known)
        walk_wrong(line, "the code does not say what failed", code);
    if (!*cw_error())
        walk_wrong(line, "there is no sentence", code);
}

cw_client *walk_connect(void) {
    cw_client *client;
    STEP(cw_connect(NULL, NULL, 0, &client));
    return client;
}

void walk_layout(cw_layout *layout, int64_t *shape) {
    *layout = (cw_layout){.ndim = 1, .itemsize = 1, .shape = shape, .dtype = "|u1"};
}

cw_array *walk_array(cw_client *client, int64_t bytes, int filling, uint32_t flags) {
    cw_layout layout;
    cw_array *array;
    walk_layout(&layout, &bytes);
    STEP(cw_array_new(client, "cpu", &layout, flags, &array));
    memset(cw_array_data(array), filling, (size_t)bytes);
    return array;
}

bool walk_filled(cw_array *array, int filling) {
    const uint8_t *data = cw_array_data(array);
    for (uint64_t i = 0; i < cw_array_nbytes(array); i++)
        if (data[i] != filling)
            return false;
    return true;
}

/* The process's trace, which stays (shm/base/trace.h). */
static bool is_trace(int folder, const char *descriptor) {
    char target[64];
    ssize_t length = readlinkat(folder, descriptor, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    return strncmp(target, "/memfd:cw-trace", 15) == 0;
}

/* Our descriptors, but for the one that counts them, and one trace. */
static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = -1, traces = 0;
    if (!folder)
        _exit(2);
    for (struct dirent *entry; (entry = readdir(folder));) {
        count += *entry->d_name != '.';
        traces += is_trace(dirfd(folder), entry->d_name);
    }
    closedir(folder);
    return count - (traces > 0);
}

static const struct {
    const char *name;
    void (*walk)(cw_client *client);
} parts[] = {
    {"names", walk_names},     {"many", walk_many},         {"trees", walk_trees},
    {"handles", walk_handles}, {"copies", walk_copies},     {"waits", walk_waits},
    {"queues", walk_queues},   {"children", walk_children}, {"gpu", walk_gpu},
};

static bool wanted(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

/* The driver, which has descriptors of its own as soon as it was asked for anything. */
static void open_driver(void) {
    char *devices;
    uint64_t count;
    STEP(cw_devices(&devices, &count));
    cw_free(devices);
}

int main(int argc, char **argv) {
    open_driver();
    int before = descriptors();
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!wanted(argc, argv, parts[i].name))
            continue;
        cw_client *client = walk_connect();
        parts[i].walk(client);
        STEP(cw_ping(client));
        cw_client_unref(client);
        int after = descriptors();
        if (after != before && parts[i].walk != walk_gpu) {
            say("descriptors: %d before, %d after\n", before, after);
            walk_wrong(__LINE__, parts[i].name, 0);
        }
    }
    if (wanted(argc, argv, "pools"))
        walk_pools();
    say("whole\n");
    return 0;
}
