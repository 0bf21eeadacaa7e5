/*
 * Doctor: what kernel and machine let us do. Each thing is tried, not concluded from a version:
 * containers and seccomp profiles refuse what the kernel has.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <linux/memfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/pidfd.h"
#include "shm/base/segment.h"
#include "tools/doctor/doctor.h"

static void check_kernel(struct doctor *doctor) {
    struct utsname name;
    unsigned major = 0, minor = 0;
    CW_ASSERT(uname(&name) == 0);
    sscanf(name.release, "%u.%u", &major, &minor);
    bool old = major < 5 || (major == 5 && minor < 3);
    doctor_add(doctor, old ? DOCTOR_MISSING : DOCTOR_OK, "kernel",
               old ? "cableway needs Linux 5.3 or newer" : NULL, "%s %s, glibc %s", name.sysname,
               name.release, gnu_get_libc_version());
    bool other = strcmp(name.machine, "x86_64") != 0;
    doctor_add(doctor, other ? DOCTOR_MISSING : DOCTOR_OK, "architecture",
               other ? "cableway runs on x86-64" : NULL, "%s", name.machine);
}

static void check_cores(struct doctor *doctor) {
    cpu_set_t allowed;
    int cores = sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
    doctor_add(doctor, cores > 1 ? DOCTOR_OK : DOCTOR_WARNING, "cores",
               cores > 1 ? NULL
                         : "with one core every message costs a switch of processes; allow two "
                           "(taskset, the container's cpus)",
               "%d may be used", cores);
}

/* The real thing: a segment that readers alone may map, then an attempt to map it writable. */
static void check_memfd(struct doctor *doctor) {
    struct cw_segment segment;
    int code = cw_segment_create("doctor", CW_PAGE, CW_SEGMENT_BLOCKS, 0, CW_SEGMENT_READERS_ONLY,
                                 &segment);
    if (code) {
        doctor_add(doctor, DOCTOR_MISSING, "memfd and seals",
                   "Linux 5.1 or newer, and a container that allows memfd_create", "%s",
                   cw_detail());
        return;
    }
    void *again = mmap(NULL, CW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0);
    if (again != MAP_FAILED) {
        munmap(again, CW_PAGE);
        doctor_add(doctor, DOCTOR_MISSING, "memfd and seals",
                   "Linux 5.1 or newer: the future-write seal protects the broker's tables",
                   "the future-write seal has no effect");
    } else {
        doctor_add(doctor, DOCTOR_OK, "memfd and seals", NULL,
                   "shrink, grow and future-write seals work");
    }
    cw_segment_close(&segment);
}

static void check_pidfd(struct doctor *doctor) {
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0), error = errno;
    struct pollfd self = {.fd = fd, .events = POLLIN};
    if (fd < 0)
        doctor_add(doctor, DOCTOR_MISSING, "pidfd", cw_pidfd_remedy(error), "pidfd_open failed: %s",
                   strerror(error));
    else if (poll(&self, 1, 0) != 0)
        doctor_add(doctor, DOCTOR_MISSING, "pidfd", "use a kernel or sandbox where it can",
                   "a pidfd cannot be polled here: %m");
    else
        doctor_add(doctor, DOCTOR_OK, "pidfd", NULL, "processes can be watched");
    if (fd >= 0)
        close(fd);
}

/* status reads the broker's page through /proc/PID/fd: tried on a child of ours. */
static void check_proc(struct doctor *doctor) {
    char path[64], link[64], mount[512];
    if (access("/proc/self/fd", X_OK) != 0) {
        doctor_add(
            doctor, DOCTOR_MISSING, "/proc",
            "mount it (mount -t proc proc /proc): broker and clients look at descriptors and "
            "processes there",
            "not there: %s", strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    if (child < 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/fd/2", (int)child);
    bool readable = readlink(path, link, sizeof link) >= 0 || errno == ENOENT;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    bool hidden = false;
    FILE *mounts = fopen("/proc/self/mounts", "re");
    while (mounts && fgets(mount, sizeof mount, mounts))
        hidden |= strncmp(mount, "proc /proc ", 11) == 0 && strstr(mount, "hidepid=") &&
                  !strstr(mount, "hidepid=0") && !strstr(mount, "hidepid=off");
    if (mounts)
        fclose(mounts);
    doctor_add(doctor, readable ? DOCTOR_OK : DOCTOR_WARNING, "/proc/PID/fd",
               readable ? NULL
                        : "status and stop need it: mount /proc, without hidepid=4, and allow "
                          "reading one's own processes",
               readable ? "own processes can be looked at%s"
                        : "own processes cannot be looked at%s",
               hidden ? " (hidepid hides those of others)" : "");
}

static void check_hugepages(struct doctor *doctor) {
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char text[128], chosen[32] = "";
    if (!doctor_read(path, text, sizeof text)) {
        doctor_add(doctor, DOCTOR_INFO, "huge pages", NULL,
                   "this kernel has none for shared memory");
        return;
    }
    sscanf(strchr(text, '[') ? strchr(text, '[') : text, "[%31[^]]", chosen);
    /* advise is for mappings, and the pages of a slab are there before it is mapped. */
    bool on = !strcmp(chosen, "always") || !strcmp(chosen, "force");
    doctor_add(doctor, on ? DOCTOR_OK : DOCTOR_INFO, "huge pages",
               on ? NULL
                  : "optional; the first put of a large array takes a quarter of the time with: "
                    "echo always > /sys/kernel/mm/transparent_hugepage/shmem_enabled (as root; "
                    "for all shared memory of the machine)",
               "for shared memory: %s", chosen);
}

static void check_cuda(struct doctor *doctor) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    doctor_add(doctor, driver ? DOCTOR_OK : DOCTOR_INFO, "CUDA driver", NULL,
               driver ? "libcuda.so.1 is there" : "none: arrays lie in host memory");
    if (driver)
        dlclose(driver);
}

void doctor_kernel(struct doctor *doctor) {
    check_kernel(doctor);
    check_cores(doctor);
    check_memfd(doctor);
    check_pidfd(doctor);
    check_proc(doctor);
    check_hugepages(doctor);
    check_cuda(doctor);
}
