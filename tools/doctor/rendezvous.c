/*
 * Doctor: the socket folder, the program to start, the broker that runs, and those of other batch
 * jobs.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/cli.h"
#include "tools/doctor/doctor.h"
#include "tools/monitor.h"

/* File systems over a network: sockets and locks in them are seen by other machines, or do not
 * work. */
static bool is_remote(int folder) {
    static const unsigned long kinds[] = {0x6969 /* NFS */,
                                          0x0bd00bd0 /* Lustre */,
                                          0x47504653 /* GPFS */,
                                          0xff534d42 /* CIFS */,
                                          0xfe534d42 /* SMB2 */,
                                          0x00c36400 /* Ceph */,
                                          0x19830326 /* BeeGFS */};
    struct statfs about;
    if (fstatfs(folder, &about))
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (((unsigned long)about.f_type & 0xffffffff) == kinds[i])
            return true;
    }
    return false;
}

/* Returns the folder's descriptor, or -1. */
static int check_folder(struct doctor *doctor, const struct cw_address *address) {
    int folder, code = cw_address_open_folder(address, false, &folder);
    if (code == -ENOENT) {
        doctor_add(doctor, DOCTOR_INFO, "socket folder", NULL, "%s: not there yet",
                   address->folder);
        return -1;
    }
    if (code) { /* the sentence tells what to do */
        doctor_add(doctor, DOCTOR_MISSING, "socket folder",
                   "set CABLEWAY_DIR to a folder of your own with mode 0700", "%s", cw_detail());
        return -1;
    }
    struct stat status;
    CW_ASSERT(fstat(folder, &status) == 0);
    bool remote = is_remote(folder);
    doctor_add(doctor, remote ? DOCTOR_WARNING : DOCTOR_OK, "socket folder",
               remote ? "it lies on a network file system: set CABLEWAY_DIR to a local folder"
                      : NULL,
               "%s: ours (uid %u), mode %04o", address->folder, (unsigned)status.st_uid,
               (unsigned)status.st_mode & 07777);
    return folder;
}

static void check_program(struct doctor *doctor) {
    char path[PATH_MAX];
    if (cli_broker_path(path, sizeof path) == 0)
        doctor_add(doctor, DOCTOR_OK, "cablewayd", NULL, "%s", path);
    else
        doctor_add(doctor, DOCTOR_MISSING, "cablewayd",
                   "install it beside this command, or set CABLEWAY_BROKER to its path", "%s",
                   cw_detail());
}

/* The limit came from whoever started the broker, and holds for all its clients. */
static void check_brokers_files(struct doctor *doctor, pid_t pid) {
    struct rlimit files;
    if (prlimit(pid, RLIMIT_NOFILE, NULL, &files) < 0)
        return; /* it has ended, or is not ours to ask */
    bool few = files.rlim_max < cw_limit_default(CW_LIMIT_max_fds);
    doctor_add(doctor, few ? DOCTOR_WARNING : DOCTOR_OK, "broker's open files",
               few ? "the program that started the broker allowed no more: end it (cableway stop) "
                     "and start it where the hard limit is higher (ulimit -Hn), or run cablewayd "
                     "as a service"
                   : NULL,
               "hard limit %llu; max_fds is %llu by default", (unsigned long long)files.rlim_max,
               (unsigned long long)cw_limit_default(CW_LIMIT_max_fds));
}

static void check_broker(struct doctor *doctor) {
    struct monitor monitor;
    double still_seconds;
    char span[OUTPUT_SHORT];
    int code = monitor_open(&monitor);
    if (code == -ENOENT) {
        doctor_add(doctor, DOCTOR_INFO, "broker", NULL,
                   "none runs yet; the first client starts it");
        return;
    }
    if (code) {
        doctor_add(doctor, DOCTOR_MISSING, "broker",
                   "do what the sentence says, or set CABLEWAY_DIR to another folder", "%s",
                   cw_detail());
        return;
    }
    enum monitor_state state = monitor_look(&monitor, &still_seconds);
    bool well = state == MONITOR_IDLE || state == MONITOR_RUNNING;
    doctor_add(doctor, well ? DOCTOR_OK : DOCTOR_MISSING, "broker",
               well ? NULL
                    : "nobody gets an answer: kill -CONT lets a stopped one go on, cableway stop "
                      "--force ends it",
               "pid %d, %s, up for %s", (int)monitor.lock.pid, monitor_state_text(state),
               output_span(output_age_seconds(monitor.root->started_ns), span));
    check_brokers_files(doctor, monitor.lock.pid);
    monitor_close(&monitor);
}

/* The pid in a lock file, if that process still holds a segment of ours at the descriptor it names.
 */
static int live_pid(int folder, const char *name) {
    struct cw_address address = {.socket_path = ""};
    struct cw_lock_line line;
    char path[64], link[64];
    snprintf(address.lock_name, sizeof address.lock_name, "%.*s", CW_ADDRESS_NAME_MAX - 1, name);
    if (cw_address_read_lock(&address, folder, &line))
        return 0;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)line.pid, line.root_fd);
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0)
        return 0;
    link[length] = 0;
    return strncmp(link, "/memfd:cw-", 10) ? 0 : (int)line.pid;
}

static bool is_lock_name(const char *name) {
    size_t length = strlen(name);
    return strncmp(name, "cablewayd-", 10) == 0 && length > 5 &&
           strcmp(name + length - 5, ".lock") == 0;
}

static void check_others(struct doctor *doctor, const struct cw_address *address, int folder) {
    DIR *listing = fdopendir(dup(folder));
    if (!listing)
        return;
    rewinddir(listing);
    for (struct dirent *entry; (entry = readdir(listing));) {
        if (!is_lock_name(entry->d_name) || !strcmp(entry->d_name, address->lock_name) ||
            strlen(entry->d_name) >= CW_ADDRESS_NAME_MAX)
            continue;
        int pid = live_pid(folder, entry->d_name);
        if (pid)
            doctor_add(doctor, DOCTOR_INFO, "other broker",
                       "it serves another batch job or version; names are apart from ours",
                       "pid %d (%s)", pid, entry->d_name);
    }
    closedir(listing);
}

static void check_job(struct doctor *doctor, const struct cw_address *address) {
    static const char *const names[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *job = secure_getenv(names[i]);
        if (!job || !*job)
            continue;
        doctor_add(doctor, DOCTOR_INFO, "batch job", NULL, "%s=%s: its broker is its own (%s)",
                   names[i], job, address->socket_name);
        return;
    }
}

void doctor_place(struct doctor *doctor) {
    struct cw_address address;
    if (cw_address_find(NULL, &address)) {
        doctor_add(doctor, DOCTOR_MISSING, "socket folder", "set CABLEWAY_DIR to a shorter path",
                   "%s", cw_detail());
        return;
    }
    int folder = check_folder(doctor, &address);
    check_program(doctor);
    check_broker(doctor);
    check_job(doctor, &address);
    if (folder >= 0) {
        check_others(doctor, &address, folder);
        close(folder);
    }
}
