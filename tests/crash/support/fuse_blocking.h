/*
 * A file system with one file, whose getattr and flush (so fstat and close) are never answered.
 * Functions in a header, so that one program alone needs libfuse.
 *
 * It is served by a child; killing that ends every call that hangs on it.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_FUSE_BLOCKING_H
#define CW_TESTS_CRASH_SUPPORT_FUSE_BLOCKING_H

#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUSE_FILE_INO 2

static char fuse_folder[200];
static pid_t fuse_pid;
static struct { _Atomic uint32_t blocked; } * fuse_shared;

static void fuse_no_answer(void) {
    atomic_fetch_add(&fuse_shared->blocked, 1);
}

static struct stat fuse_attributes(fuse_ino_t ino) {
    return (struct stat){.st_ino = ino,
                         .st_mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0666,
                         .st_nlink = 1,
                         .st_size = 8192};
}

static void fuse_on_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    (void)parent;
    struct fuse_entry_param entry = {.ino = FUSE_FILE_INO, .entry_timeout = 1000};
    entry.attr = fuse_attributes(FUSE_FILE_INO);
    if (strcmp(name, "blocks") != 0)
        fuse_reply_err(request, ENOENT);
    else
        fuse_reply_entry(request, &entry);
}

static void fuse_on_getattr(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file) {
    (void)file;
    struct stat attributes = fuse_attributes(ino);
    if (ino == FUSE_ROOT_ID)
        fuse_reply_attr(request, &attributes, 1000);
    else
        fuse_no_answer();
}

static void fuse_on_open(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file) {
    (void)ino;
    fuse_reply_open(request, file);
}

static void fuse_on_flush(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file) {
    (void)request;
    (void)ino;
    (void)file;
    fuse_no_answer();
}

static _Noreturn void fuse_serve(int ready) {
    static const struct fuse_lowlevel_ops operations = {.lookup = fuse_on_lookup,
                                                        .getattr = fuse_on_getattr,
                                                        .open = fuse_on_open,
                                                        .flush = fuse_on_flush};
    char program[] = "fuse_blocking";
    char *words[] = {program, NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(1, words);
    struct fuse_session *session =
        fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, fuse_folder) != 0)
        _exit(1);
    if (write(ready, "", 1) != 1)
        _exit(1);
    fuse_session_loop(session);
    _exit(0);
}

/* Mounts it in a folder below place. False, with the reason, where that cannot be. */
static bool fuse_start(const char *place, char *reason, size_t reason_bytes) {
    int ready[2];
    char byte;
    if (access("/dev/fuse", R_OK | W_OK) != 0) {
        snprintf(reason, reason_bytes, "no /dev/fuse");
        return false;
    }
    /* In a mount namespace of our own, where that is allowed: a test that is killed then leaves
     * nothing mounted. */
    if (unshare(CLONE_NEWNS) == 0)
        (void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    snprintf(fuse_folder, sizeof fuse_folder, "%s/fuse", place);
    fuse_shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fuse_shared == MAP_FAILED || mkdir(fuse_folder, 0700) != 0 || pipe(ready) != 0) {
        snprintf(reason, reason_bytes, "no folder for FUSE: %s", strerror(errno));
        return false;
    }
    fflush(NULL);
    fuse_pid = fork();
    if (fuse_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        fuse_serve(ready[1]);
    }
    close(ready[1]);
    ssize_t count = read(ready[0], &byte, 1);
    close(ready[0]);
    if (count == 1)
        return true;
    waitpid(fuse_pid, NULL, 0);
    fuse_pid = 0;
    rmdir(fuse_folder);
    snprintf(reason, reason_bytes, "a FUSE file system cannot be mounted here");
    return false;
}

static int fuse_open_blocking(void) {
    char path[220];
    snprintf(path, sizeof path, "%s/blocks", fuse_folder);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Calls that were not answered so far. */
static unsigned fuse_blocked(void) {
    return atomic_load(&fuse_shared->blocked);
}

/* Ends the server, and with it every call that hangs. May be repeated. */
static void fuse_release(void) {
    if (fuse_pid > 0) {
        kill(fuse_pid, SIGKILL);
        waitpid(fuse_pid, NULL, 0);
    }
    fuse_pid = 0;
}

/* And unmounts. May be repeated. */
static void fuse_stop(void) {
    fuse_release();
    if (umount2(fuse_folder, MNT_DETACH) != 0) {
        pid_t pid = fork();
        if (pid == 0) {
            execlp("fusermount3", "fusermount3", "-u", "-z", "-q", fuse_folder, NULL);
            _exit(127);
        }
        waitpid(pid, NULL, 0);
    }
    rmdir(fuse_folder);
}

#endif
