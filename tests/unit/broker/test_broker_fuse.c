/*
 * Descriptors of a file system that never answers: fstat and close on them hang for as long as it
 * likes. A hostile client hands them in wherever the protocol takes a descriptor; the broker must
 * go on, and end its service at SIGTERM: socket and lock are free for the next one. (The process
 * itself cannot be gone before the kernel lets its helper out of that close.)
 *
 * LDLIBS: -lfuse3
 *
 * The file system lives in a child: it answers look-ups and opens, and never getattr or flush of
 * its one file. Killing that child ends the mount's connection, and everything that hangs in it.
 */
#define FUSE_USE_VERSION 35
#include <fuse3/fuse_lowlevel.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

enum { ROOT_INODE = 1, SLOW_INODE = 2 };

static struct raw_broker broker;
static struct raw_mail mail;
static char mount_path[64];
static pid_t server;

static void slow_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    struct fuse_entry_param entry = {.ino = SLOW_INODE,
                                     .entry_timeout = 1000,
                                     .attr = {.st_mode = S_IFREG | 0600, .st_nlink = 1}};
    if (parent == ROOT_INODE && strcmp(name, "slow") == 0)
        fuse_reply_entry(request, &entry);
    else
        fuse_reply_err(request, ENOENT);
}

static void slow_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
    struct stat status = {.st_ino = inode, .st_mode = S_IFDIR | 0700, .st_nlink = 2};
    (void)info;
    if (inode == ROOT_INODE)
        fuse_reply_attr(request, &status, 1000);
    /* Of the file: no answer, ever. */
}

static void slow_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
    (void)inode;
    fuse_reply_open(request, info);
}

static void slow_flush(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *info) {
    (void)request, (void)inode, (void)info; /* no answer, ever */
}

static const struct fuse_lowlevel_ops operations = {
    .lookup = slow_lookup, .getattr = slow_getattr, .open = slow_open, .flush = slow_flush};

_Noreturn static void serve(int ready) {
    char *argv[] = {(char[]){"slow"}, NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(1, argv);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct fuse_session *session =
        fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, mount_path) != 0)
        _exit(1);
    if (write(ready, "x", 1) != 1)
        _exit(2);
    fuse_session_loop(session);
    _exit(0);
}

/* False where this machine allows no mount. */
static bool mount_slow(void) {
    int ends[2];
    char byte;
    /* In a mount namespace of our own, where that is allowed: a test that is killed leaves nothing.
     */
    if (unshare(CLONE_NEWNS) == 0)
        (void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    strcpy(mount_path, "/tmp/cw-slow-XXXXXX");
    assert_non_null(mkdtemp(mount_path));
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    server = fork();
    if (server == 0)
        serve(ends[1]);
    close(ends[1]);
    bool mounted = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    return mounted;
}

static void unmount_slow(void) {
    char command[128];
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    if (umount2(mount_path, MNT_DETACH) != 0) {
        snprintf(command, sizeof command, "fusermount3 -u -z %s 2>/dev/null", mount_path);
        if (system(command) != 0)
            print_message("%s stays\n", mount_path);
    }
    rmdir(mount_path);
}

/* Hands the file in everywhere, in a process of its own, since its own close hangs. */
static pid_t hostile_start(int *said) {
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client client;
        struct raw_slab slab;
        char path[80];
        snprintf(path, sizeof path, "%s/slow", mount_path);
        int slow = open(path, O_RDWR | O_CLOEXEC), sock = raw_dial(&broker);
        int same[8] = {slow, slow, slow, slow, slow, slow, slow, slow};
        struct cw_slab_info info = {
            .device_kind = CW_DEVICE_HOST, .size_bytes = 4096, .blocks = 16};
        int result = slow < 0 ? 1 : 0;
        /* As a pidfd. */
        if (!result && (raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, slow) != 0 ||
                        raw_receive(sock, &mail, RAW_TIMEOUT_MS) != 1 || mail.head.status >= 0))
            result = 2;
        if (!result && raw_connect(&broker, &client) != 0)
            result = 3;
        /* As data, as a block table, as a fork pipe, as a GPU's memory. */
        raw_slab_make(4096, 16, &slab);
        int data_slow[2] = {slow, slab.table_segment.fd}, table_slow[2] = {slab.data.fd, slow};
        if (!result && raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, data_slow, 2,
                                    &mail) != -EINVAL)
            result = 4;
        if (!result && raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, table_slow, 2,
                                    &mail) != -EPROTO)
            result = 5;
        info.flags = CW_SLAB_FOREIGN;
        if (!result && raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, data_slow, 2,
                                    &mail) != -EINVAL)
            result = 6;
        info = (struct cw_slab_info){
            .device_kind = CW_DEVICE_CUDA, .device_uuid = {1}, .size_bytes = 4096, .blocks = 16};
        if (!result && raw_exchange(&client, CW_OP_SLAB_ADD, &info, sizeof info, data_slow, 2,
                                    &mail) != -EINVAL)
            result = 7;
        if (!result && raw_exchange(&client, CW_OP_FORK, NULL, 0, &slow, 1, &mail) != -EPROTO)
            result = 8;
        /* Where none belongs, and too many. */
        (void)raw_exchange(&client, CW_OP_LEASE_TABLE, NULL, 0, same, 3, &mail);
        (void)raw_exchange(&client, CW_OP_LEASE_TABLE, NULL, 0, same, 8, &mail);
        if (write(ends[1], &result, sizeof result) != sizeof result)
            result = 9;
        pause();
        _exit(result);
    }
    close(ends[1]);
    *said = ends[0];
    return pid;
}

static void files_that_never_answer_disturb_nobody(void **state) {
    (void)state;
    struct raw_client honest;
    struct raw_slab slab;
    int said, result = -1;
    if (!mount_slow()) {
        print_message("skipped: no file system can be mounted here\n");
        unmount_slow();
        skip();
    }
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &honest), 0);
    pid_t hostile = hostile_start(&said);
    bool answered = read(said, &result, sizeof result) == sizeof result;
    /* Some of them hang in the helper now: the others go on, memory included. */
    bool works = raw_ping(&honest) == 0 && raw_slab_add(&honest, 1 << 20, 16, &slab) == 0;
    if (works)
        raw_slab_close(&slab);
    raw_bye(&honest);
    bool closes = RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0);
    kill(broker.pid, SIGTERM);
    bool left = RAW_UNTIL(access(broker.address.socket_path, F_OK) != 0);
    struct raw_broker next = broker;
    next.root_segment = (struct cw_segment){.fd = -1};
    next.errors = -1;
    next.said_bytes = 0;
    raw_broker_spawn(&next, NULL, NULL);
    bool followed = raw_broker_ready(&next);
    kill(next.pid, SIGTERM);
    int next_ended = raw_broker_reap(&next, RAW_TIMEOUT_MS);
    cw_segment_close(&next.root_segment);
    unmount_slow(); /* before any assertion: what hangs, hangs until here */
    int ended = raw_broker_reap(&broker, RAW_TIMEOUT_MS);
    kill(hostile, SIGKILL);
    waitpid(hostile, NULL, 0);
    close(said);
    raw_broker_remove(&broker);
    assert_true(answered);
    assert_int_equal(result, 0);
    assert_true(works);
    assert_true(closes);
    assert_true(left);
    assert_true(followed);
    assert_int_equal(next_ended, 0);
    assert_int_equal(ended, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_that_never_answer_disturb_nobody)};
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
