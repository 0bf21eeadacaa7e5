/*
 * Neighbour: see neighbour.h. The child serves one wish at a time over a socket pair and dies with
 * its maker.
 */
#include "tests/crash/support/neighbour.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "tests/support.h"

#define GROWN 60 /* arrays */

static cw_client *client; /* in the child alone */

static bool all_bytes(const cw_array *array, uint64_t size_bytes, int byte) {
    const uint8_t *data = cw_array_data(array);
    if (cw_array_nbytes(array) != size_bytes)
        return false;
    for (uint64_t i = 0; i < size_bytes; i++)
        if (data[i] != byte)
            return false;
    return true;
}

static int put_bytes(const char *name, int64_t size_bytes, int byte) {
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size_bytes, .dtype = "|u1"};
    cw_array *array;
    int code = cw_array_new(client, "cpu", &layout, 0, &array);
    if (code)
        return code;
    memset(cw_array_data(array), byte, (size_t)size_bytes);
    code = cw_array_put(array, name, CW_REPLACE, NULL, 0);
    cw_array_close(array);
    return code;
}

/* 0: all its bytes are byte; -EBADMSG: they are not. */
static int look(const char *name, uint64_t size_bytes, int byte) {
    cw_array *array;
    int code = cw_get(client, name, 0, &array);
    if (code)
        return code;
    code = all_bytes(array, size_bytes, byte) ? 0 : -EBADMSG;
    cw_array_close(array);
    return code;
}

static int live(void) {
    static int turn;
    int code = cw_ping(client), byte = ++turn & 0xff;
    if (!code)
        code = look("steady", 100000, 7);
    if (!code)
        code = put_bytes("mine", 5000, byte);
    if (!code)
        code = look("mine", 5000, byte);
    char *names;
    uint64_t count;
    if (!code)
        code = cw_names(client, "", &names, &count);
    if (!code) {
        cw_free(names);
        code = count >= 2 ? 0 : -EBADMSG;
    }
    return code;
}

static int sweep(void) {
    char *names;
    uint64_t count;
    int code = cw_names(client, "nonsense/", &names, &count);
    if (code)
        return code;
    const char *name = names;
    for (uint64_t i = 0; i < count && !code; i++, name += strlen(name) + 1)
        code = cw_remove(client, name);
    cw_free(names);
    return code;
}

/* Also out of slabs that it adopts meanwhile. */
static int grow(void) {
    cw_array *arrays[GROWN];
    const int64_t sizes[] = {3000, 70000, 900000};
    int code = 0, made = 0;
    for (; made < GROWN && !code; made++) {
        cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &sizes[made % 3], .dtype = "|u1"};
        code = cw_array_new(client, "cpu", &layout, 0, &arrays[made]);
        if (code)
            break;
        memset(cw_array_data(arrays[made]), made, cw_array_nbytes(arrays[made]));
    }
    while (made-- > 0) {
        if (!all_bytes(arrays[made], (uint64_t)sizes[made % 3], made))
            code = -EBADMSG;
        cw_array_close(arrays[made]);
    }
    return code;
}

static int look_at_y(void) {
    int code = look("y", NEIGHBOUR_X_BYTES, NEIGHBOUR_CHILD_PUT);
    if (code)
        return code == -ENOENT ? 0 : code;
    code = cw_remove(client, "y");
    return code ? code : 1;
}

static int serve(enum neighbour_wish wish) {
    switch (wish) {
    case NEIGHBOUR_LIVE:
        return live();
    case NEIGHBOUR_NEW_X:
        return put_bytes("x", NEIGHBOUR_X_BYTES, 9);
    case NEIGHBOUR_DROP_X:
        return cw_remove(client, "x");
    case NEIGHBOUR_LOOK_Y:
        return look_at_y();
    case NEIGHBOUR_GROW:
        return grow();
    case NEIGHBOUR_SWEEP:
        return sweep();
    case NEIGHBOUR_QUIT:
        break;
    }
    return 0;
}

static _Noreturn void child(int fd) {
    int code = cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client);
    if (!code)
        code = put_bytes("steady", 100000, 7);
    if (code)
        printf("# the neighbour cannot live: %s\n", cw_error());
    for (char wish = 0; wish != NEIGHBOUR_QUIT;) {
        if (send(fd, &code, sizeof code, MSG_NOSIGNAL) != sizeof code || recv(fd, &wish, 1, 0) != 1)
            break;
        code = serve((enum neighbour_wish)wish);
        if (code < 0)
            printf("# the neighbour's wish %c: %d, %s\n", wish, code, cw_error());
        fflush(stdout);
    }
    cw_client_unref(client);
    _exit(0);
}

/* Waits by looks of a millisecond: a machine that stops all of us for a while takes nothing from
 * it. */
static int answer(struct neighbour *neighbour, int looks) {
    struct pollfd poller = {.fd = neighbour->fd, .events = POLLIN};
    int64_t begun_ns = test_now_ns();
    int code;
    while (poll(&poller, 1, 1) != 1)
        if (looks-- == 0)
            return -ETIMEDOUT;
    if (recv(neighbour->fd, &code, sizeof code, 0) != sizeof code)
        return -EPIPE;
    int64_t took_ns = test_now_ns() - begun_ns;
    if (took_ns > neighbour->worst_ns)
        neighbour->worst_ns = took_ns;
    return code;
}

void neighbour_start(struct neighbour *neighbour) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        abort();
    fflush(NULL);
    *neighbour = (struct neighbour){.pid = fork(), .fd = fds[0]};
    if (neighbour->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        child(fds[1]);
    }
    close(fds[1]);
    int code = answer(neighbour, 10000);
    if (code) {
        printf("Bail out! the neighbour did not come to life: %d\n", code);
        exit(1);
    }
    neighbour->worst_ns = 0;
}

int neighbour_ask(struct neighbour *neighbour, enum neighbour_wish wish) {
    char byte = (char)wish;
    if (send(neighbour->fd, &byte, 1, MSG_NOSIGNAL) != 1)
        return -EPIPE;
    return answer(neighbour, NEIGHBOUR_LIMIT_MS);
}

void neighbour_stop(struct neighbour *neighbour) {
    if (neighbour->pid <= 0)
        return;
    char byte = NEIGHBOUR_QUIT;
    if (send(neighbour->fd, &byte, 1, MSG_NOSIGNAL) != 1)
        kill(neighbour->pid, SIGKILL);
    close(neighbour->fd);
    for (int looks = 0; waitpid(neighbour->pid, NULL, WNOHANG) == 0; looks++) {
        usleep(1000);
        if (looks == 5000)
            kill(neighbour->pid, SIGKILL);
    }
    neighbour->pid = 0;
}
