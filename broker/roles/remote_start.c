/*
 * The start of the bridge: see remote.h. The loop's thread alone.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "broker/core/spawn.h"
#include "broker/roles/verdict.h"

#define PROGRAM     CWD_REMOTE_PROGRAM
#define STARTS_MOST 3u

extern char **environ;

int cwd_remote_start(struct cwd_broker *b) {
    struct cwd_remote *remote = &b->remote;
    static char tell[] = "--tell";
    char path[PATH_MAX], parent[16];
    char *argv[9 + 2 * CWD_REMOTE_OPTIONS_MAX] = {(char[]){PROGRAM},    (char[]){"run"},
                                                  (char[]){"--socket"}, b->address.socket_path,
                                                  (char[]){"--parent"}, parent};
    uint32_t used = 6;
    if (remote->starts >= STARTS_MOST && remote->jobs)
        return cw_fail(-EREMOTEIO,
                       "%s ended %u times before it was ready: the broker's log says why", PROGRAM,
                       remote->starts);
    int code = cwd_spawn_find(PROGRAM, "CABLEWAY_BRIDGE", path);
    if (code == -EDQUOT)
        return code;
    if (code)
        return cw_fail(
            -EREMOTEIO,
            "other nodes are reached by the program " PROGRAM ", and %.300s cannot be "
            "run: %m; it is built where the headers of liburing and OpenSSL are, or name "
            "it in CABLEWAY_BRIDGE where the broker is started",
            path);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    for (uint32_t i = 0; i < remote->options.count; i++)
        argv[used++] = remote->options.words[i];
    int tell_fd = cwd_verdict_pipe(b);
    if (tell_fd >= 0)
        argv[used++] = tell;
    code = cwd_spawn(path, argv, environ, tell_fd, &remote->pid, &remote->pidfd);
    if (tell_fd >= 0)
        close(tell_fd);
    if (code == 0) {
        code = cwd_loop_add(b, remote->pidfd, CWD_EVENT_BRIDGE, 0, EPOLLIN);
        if (code) {
            kill(remote->pid, SIGKILL);
            waitpid(remote->pid, NULL, 0);
            close(remote->pidfd);
        }
    }
    if (code) {
        remote->pid = 0;
        remote->pidfd = -1;
        return code;
    }
    remote->starts++;
    remote->look_ns = 0;
    b->fds++;
    cwd_log("started %s, pid %d", path, (int)remote->pid);
    return 0;
}
