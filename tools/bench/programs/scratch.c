/*
 * A broker of one's own: see scratch.h. If the benchmark dies, its broker ends when it is idle; the
 * folder in /tmp stays.
 */
#include "tools/bench/programs/scratch.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tools/bench/programs/bench.h"

void scratch_open(struct scratch *out) {
    strcpy(out->folder, "/tmp/cableway-bench-XXXXXX");
    CW_ASSERT(mkdtemp(out->folder));
    bench_need(cw_connect(out->folder, "", 0, &out->client), "connect");
}

static void remove_folder(const char *folder) {
    DIR *listing = opendir(folder);
    char path[512];
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (listing)
        closedir(listing);
    rmdir(folder);
}

void scratch_close(struct scratch *scratch) {
    struct pollfd end = {.fd =
                             (int)syscall(SYS_pidfd_open, cw_client_broker_pid(scratch->client), 0),
                         .events = POLLIN};
    cw_broker_stop(scratch->client);
    cw_client_unref(scratch->client);
    if (end.fd >= 0) {
        poll(&end, 1, 5000);
        close(end.fd);
    }
    remove_folder(scratch->folder);
}
