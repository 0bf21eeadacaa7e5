/*
 * Call sites, of the library that makes calls fail (shim.c).
 *
 * A site is a call's name and the innermost frames of our own modules that lead to it, as
 * module+offset: so one place in cw_segment_create() is several sites, one for each that wants a
 * segment. Frames of libc between the call and our own do not count (malloc under asprintf is
 * asprintf's caller's), but a call from another module, such as CPython, is none of ours.
 *
 * Invariants: the process in which a call fails does so once, and once in all processes of a run:
 * whoever creates the file FAULTS_FIRED first. Whatever this file does itself is not looked at
 * (inside), allocates nothing by malloc, and keeps errno. Nothing is kept open: programs of ours
 * close all that they do not know.
 *
 * FAULTS_ROLE says in which process this works: "PROGRAM", or for Python "PROGRAM:parent" (the
 * first process of the run) and "PROGRAM:worker" (all others). FAULTS_MODULES: the beginnings of
 * the names of our modules, divided by ':'. FAULTS_LIST: a file for the sites that are reached.
 * FAULTS_SITE: the number of one, as listed, that fails; FAULTS_ERROR: with what.
 *
 * Each process has its own state, copied by fork; if it dies, nothing is left but the two files.
 */
#include "tests/faults/sites.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#define DEPTH      3 /* frames of ours that make a site */
#define LOOK_AT    64
#define SEEN       16384u /* sites of a process; a power of two */
#define NAME_MAX_  64
#define MODULES    16
#define SITE_BYTES 512

static struct {
    bool on, at_worker, at_parent;
    char program[NAME_MAX_], role[NAME_MAX_], list[PATH_MAX], fired[PATH_MAX];
    char modules[MODULES][NAME_MAX_];
    unsigned module_count;
    uint64_t site;
    int error;
    pid_t first; /* the first process of the run */
    uint64_t seen[SEEN];
} state;

static _Thread_local bool inside __attribute__((tls_model("initial-exec")));

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void copy_text(char *to, size_t room, const char *from) {
    size_t length = from ? strlen(from) : 0;
    if (length >= room)
        length = room - 1;
    memcpy(to, from ? from : "", length);
    to[length] = 0;
}

static void read_modules(const char *at) {
    while (at && *at && state.module_count < MODULES) {
        size_t length = strcspn(at, ":");
        if (length && length < NAME_MAX_) {
            memcpy(state.modules[state.module_count], at, length);
            state.modules[state.module_count++][length] = 0;
        }
        at += length + (at[length] == ':');
    }
}

static _Unwind_Reason_Code first_frame(struct _Unwind_Context *context, void *argument) {
    (void)context, (void)argument;
    return _URC_END_OF_STACK;
}

__attribute__((constructor)) static void begin(void) {
    char path[PATH_MAX], number[32];
    const char *role = getenv("FAULTS_ROLE"), *text;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (!role || length <= 0)
        return;
    path[length] = 0;
    copy_text(state.program, sizeof state.program, last_part(path));
    copy_text(state.role, sizeof state.role, role);
    char *which = strchr(state.role, ':');
    if (which)
        *which++ = 0;
    state.at_parent = which && strcmp(which, "parent") == 0;
    state.at_worker = which && strcmp(which, "worker") == 0;
    if (strncmp(state.program, state.role, strlen(state.role)) != 0)
        return;
    if (!(text = getenv("FAULTS_FIRST"))) {
        snprintf(number, sizeof number, "%d", (int)getpid());
        setenv("FAULTS_FIRST", number, 1);
        text = number;
    }
    state.first = (pid_t)atoi(text);
    read_modules(getenv("FAULTS_MODULES"));
    copy_text(state.list, sizeof state.list, getenv("FAULTS_LIST"));
    copy_text(state.fired, sizeof state.fired, getenv("FAULTS_FIRED"));
    if ((text = getenv("FAULTS_SITE")))
        state.site = strtoull(text, NULL, 16);
    if ((text = getenv("FAULTS_ERROR")))
        state.error = atoi(text);
    /* The first unwinding may allocate: it does so here. */
    inside = true;
    _Unwind_Backtrace(first_frame, NULL);
    inside = false;
    state.on = state.module_count > 0;
}

struct frames {
    const char *call;
    char text[SITE_BYTES];
    size_t length;
    unsigned ours, looked;
    bool foreign;
};

enum { OTHER, LIBC, OURS, SHIM };

static int kind_of(const char *module) {
    if (strncmp(module, "libfaults", 9) == 0)
        return SHIM;
    if (strncmp(module, "libc.so", 7) == 0 || strncmp(module, "ld-linux", 8) == 0)
        return LIBC;
    for (unsigned i = 0; i < state.module_count; i++)
        if (strncmp(module, state.modules[i], strlen(state.modules[i])) == 0)
            return OURS;
    return OTHER;
}

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *argument) {
    struct frames *f = argument;
    int before;
    uintptr_t at = _Unwind_GetIPInfo(context, &before);
    struct dl_find_object found;
    if (++f->looked > LOOK_AT || !at || _dl_find_object((void *)(at - !before), &found) != 0)
        return _URC_END_OF_STACK;
    const char *path = found.dlfo_link_map->l_name;
    const char *module = path && *path ? last_part(path) : state.program;
    int kind = kind_of(module);
    if (kind == OURS) {
        int written = snprintf(
            f->text + f->length, sizeof f->text - f->length, "%s%s+0x%llx", f->ours ? "<" : "@",
            module, (unsigned long long)(at - !before - (uintptr_t)found.dlfo_link_map->l_addr));
        f->length += written > 0 ? (size_t)written : 0;
        if (f->length >= sizeof f->text || ++f->ours == DEPTH)
            return _URC_END_OF_STACK;
    } else if (kind == OTHER && !f->ours) {
        f->foreign = true;
        return _URC_END_OF_STACK;
    }
    return _URC_NO_REASON;
}

static uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    return hash ? hash : 1;
}

/* Writes one line; true if the file was made by that. */
static bool write_line(const char *path, int flags, uint64_t hash, const char *text) {
    char line[SITE_BYTES + 64];
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return false;
    int length =
        snprintf(line, sizeof line, "%016llx %d %s\n", (unsigned long long)hash, getpid(), text);
    long written = syscall(SYS_write, fd, line, (size_t)length);
    syscall(SYS_close, fd);
    return written == length;
}

/* Is this site new to this process? */
static bool note(uint64_t hash) {
    for (unsigned n = 0; n < SEEN; n++) {
        uint64_t *place = &state.seen[(hash + n) & (SEEN - 1)], none = 0;
        if (__atomic_compare_exchange_n(place, &none, hash, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return true;
        if (none == hash)
            return false;
    }
    return false;
}

static int look(const char *call) {
    struct frames f = {.call = call};
    f.length = (size_t)snprintf(f.text, sizeof f.text, "%s", call);
    _Unwind_Backtrace(frame, &f);
    if (f.foreign || !f.ours)
        return 0;
    uint64_t hash = hash_of(f.text);
    if (*state.list && note(hash))
        write_line(state.list, O_APPEND, hash, f.text);
    if (hash != state.site || !write_line(state.fired, O_EXCL, hash, f.text))
        return 0;
    return state.error;
}

int faults_here(const char *call) {
    if (!state.on || inside)
        return 0;
    if ((state.at_parent && getpid() != state.first) ||
        (state.at_worker && getpid() == state.first))
        return 0;
    int before = errno;
    inside = true;
    int fault = look(call);
    inside = false;
    errno = before;
    return fault;
}
