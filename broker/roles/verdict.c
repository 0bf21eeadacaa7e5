/*
 * Verdict: see verdict.h. The loop's thread owns it. If the broker dies the starter's pipe ends,
 * and it says so; if the bridge dies its pipe ends, which is a verdict.
 */
#include "broker/roles/verdict.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/core/detach.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

#define LIMIT_NS 30000000000 /* a name server may take long */

void cwd_verdict_init(struct cwd_broker *b) {
    b->verdict = (struct cwd_verdict){.starter_fd = -1, .told_fd = -1};
}

void cwd_verdict_await(struct cwd_broker *b, int starter_fd) {
    b->verdict.awaited = true;
    b->verdict.starter_fd = starter_fd;
    b->verdict.until_ns = cw_now_ns() + LIMIT_NS;
}

static void end(struct cwd_broker *b, enum cwd_exit code, const char *text) {
    struct cwd_verdict *verdict = &b->verdict;
    if (!verdict->awaited)
        return;
    verdict->awaited = false;
    if (verdict->told_fd >= 0) {
        cwd_loop_remove(b, verdict->told_fd);
        close(verdict->told_fd);
        verdict->told_fd = -1;
    }
    if (code == CWD_EXIT_OK) {
        cwd_detach_tell(verdict->starter_fd, code, text);
        verdict->starter_fd = -1;
        return;
    }
    snprintf(verdict->text, sizeof verdict->text, "%.*s", (int)sizeof verdict->text - 1, text);
    b->exit_code = code;
    b->stopping = true;
    b->stop_reason = "the bridge that was asked for cannot run";
}

int cwd_verdict_pipe(struct cwd_broker *b) {
    int ends[2];
    if (!b->verdict.awaited || b->verdict.told_fd >= 0)
        return -1;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        cw_fail(-EDQUOT, "no pipe could be made to the bridge: %m; %s",
                cw_descriptor_remedy(errno));
        cwd_verdict_fail(b);
        return -1;
    }
    if (cwd_loop_add(b, ends[0], CWD_EVENT_TOLD, 0, EPOLLIN) != 0) {
        close(ends[0]);
        close(ends[1]);
        cwd_verdict_fail(b);
        return -1;
    }
    b->verdict.told_fd = ends[0];
    return ends[1];
}

void cwd_verdict_fail(struct cwd_broker *b) {
    char text[CW_DETAIL_MAX];
    strcpy(text, cw_detail());
    end(b, CWD_EXIT_FAILED, text);
}

void cwd_verdict_on_told(struct cwd_broker *b) {
    char text[CW_DETAIL_MAX + 8];
    if (b->verdict.told_fd < 0)
        return;
    ssize_t count = read(b->verdict.told_fd, text, sizeof text - 1);
    if (count <= 0) {
        cw_fail(-EREMOTEIO, "cableway-bridge ended before it listened; %.300s says why",
                b->address.log_path);
        cwd_verdict_fail(b);
        return;
    }
    text[count] = 0;
    if (!*text) {
        end(b, CWD_EXIT_OK, "");
    } else if (strncmp(text, "key: ", 5) == 0) {
        char said[sizeof text + 80];
        snprintf(said, sizeof said, "%s; other nodes are reached as soon as it is there", text + 5);
        end(b, CWD_EXIT_OK, said);
    } else {
        end(b, CWD_EXIT_FAILED, text);
    }
}

int64_t cwd_verdict_serve(struct cwd_broker *b) {
    if (!b->verdict.awaited)
        return INT64_MAX;
    if (b->now_ns >= b->verdict.until_ns) {
        char text[CW_DETAIL_MAX];
        snprintf(text, sizeof text,
                 "the bridge has not begun to listen within 30 s; it goes on, and %.300s tells how",
                 b->address.log_path);
        end(b, CWD_EXIT_OK, text);
        return INT64_MAX;
    }
    return b->verdict.until_ns;
}

void cwd_verdict_deinit(struct cwd_broker *b) {
    end(b, CWD_EXIT_FAILED, "the broker was ended before its bridge listened");
    cwd_detach_tell(b->verdict.starter_fd, b->exit_code, b->verdict.text);
    b->verdict.starter_fd = -1;
}
