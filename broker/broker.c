/*
 * The broker as a whole: everything is built here in order, and unwound in reverse.
 *
 *   limits -> place (folder, lock, log) -> loop -> root segment -> directory -> closers -> socket
 *
 * The socket comes last: who can connect finds all else ready. One process, one thread (and the
 * closers'). If it dies, clients see their sockets end; what they mapped stays.
 */
#include "broker/broker.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "broker/core/closer.h"
#include "broker/core/config.h"
#include "broker/memory/slabs.h"
#include "broker/roles/once.h"
#include "broker/memory/inherited.h"
#include "broker/memory/fences.h"
#include "broker/memory/groups.h"
#include "broker/memory/holds.h"
#include "broker/roles/copy_jobs.h"
#include "broker/names/routes.h"
#include "broker/core/errors.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "broker/core/monitor.h"
#include "broker/names/claims.h"
#include "broker/names/ties.h"
#include "broker/names/names.h"
#include "broker/names/versions.h"
#include "broker/core/rendezvous.h"
#include "broker/session/session.h"
#include "broker/memory/transit.h"
#include "ipc/cableway.h"

uint64_t cwd_fds_held(struct cwd_broker *b) {
    return b->fds + cwd_closer_pending(b->closer) + cwd_closer_pending(b->untrusted_closer);
}

static uint64_t random_instance(void) {
    uint64_t instance = 0;
    if (getrandom(&instance, sizeof instance, 0) != (ssize_t)sizeof instance || instance == 0)
        instance = (uint64_t)cw_now_ns() << 20 | (uint64_t)getpid();
    return instance;
}

static int make_root(struct cwd_broker *b) {
    int code = cw_segment_create("root", sizeof(struct cw_root), CW_SEGMENT_ROOT, b->instance,
                                 CW_SEGMENT_READERS_ONLY, &b->root_segment);
    if (code)
        return code;
    b->root = b->root_segment.base;
    cwd_monitor_init(b);
    code = cw_alive_begin(&b->alive, &b->root->alive);
    if (code)
        return code;
    code = cw_directory_writer_new(&b->root->directory, cw_limit_most(CW_LIMIT_max_names),
                                   b->instance, &b->directory);
    if (code == 0)
        code = cwd_closer_new(b->closed_fd, &b->closer);
    if (code == 0)
        code = cwd_closer_new(b->closed_fd, &b->untrusted_closer);
    return code;
}

int cwd_broker_init(struct cwd_broker *b, const struct cwd_options *options,
                    enum cwd_exit *exit_code) {
    bool fds_lowered;
    *b = (struct cwd_broker){.folder_fd = -1,
                             .lock_fd = -1,
                             .listen_fd = -1,
                             .epoll_fd = -1,
                             .signal_fd = -1,
                             .closed_fd = -1,
                             .root_segment = {.fd = -1},
                             .idle_exit_ns = options->idle_exit_ns,
                             .poison_ns = INT64_MAX,
                             .wake_again_ns = INT64_MAX,
                             .instance = random_instance()};
    cwd_mover_init(b);
    cwd_remote_init(b);
    cwd_verdict_init(b);
    b->remote.options = options->remote;
    *exit_code = CWD_EXIT_USAGE;
    int code = cwd_config_load(options->config_file, &b->limits, &b->remote.options);
    if (code)
        return code;
    cw_descriptors_are_the_brokers();
    code = cwd_rendezvous_lock(b, options, exit_code);
    if (code)
        goto unwind;
    *exit_code = CWD_EXIT_FAILED;
    code = cwd_limits_settle(&b->limits, &fds_lowered);
    if (code == 0)
        code = cwd_loop_init(b);
    if (code == 0)
        code = make_root(b);
    if (code == 0)
        code = cwd_holds_init(b);
    if (code == 0)
        code = cwd_transits_init(b);
    if (code == 0)
        code = cwd_versions_init(b);
    if (code == 0)
        code = cwd_ties_init(b);
    if (code == 0)
        code = cwd_rendezvous_listen(b);
    if (code == 0)
        code = cwd_loop_add(b, b->listen_fd, CWD_EVENT_LISTEN, 0, EPOLLIN);
    if (code)
        goto unwind;
    b->accepting = true;
    cwd_log("cablewayd %s listens at %s, instance %llu", CW_VERSION, b->address.socket_path,
            (unsigned long long)b->instance);
    if (fds_lowered)
        cwd_log_error(
            0,
            "max_fds is %llu: the program that started this broker allows no more (hard limit "
            "on open files, ulimit -Hn), and this holds for all its clients; if that is too "
            "little, end it (cableway stop) and start it where more are allowed",
            (unsigned long long)CWD_LIMIT(b, max_fds));
    *exit_code = CWD_EXIT_OK;
    return 0;

unwind:
    cwd_broker_deinit(b);
    return code;
}

void cwd_broker_deinit(struct cwd_broker *b) {
    cw_alive_end(&b->alive); /* before another may have the lock */
    cwd_rendezvous_withdraw(b);
    if (b->root && b->closer && b->untrusted_closer) {
        b->stopping = true;
        cwd_mover_deinit(b);
        cwd_remote_deinit(b);
        cwd_jobs_deinit(b);
        cwd_links_deinit(b);
        cwd_deeds_deinit(b);
        cwd_names_deinit(b);
        cwd_ties_deinit(b);
        cwd_transits_deinit(b);
        cwd_groups_deinit(b);
        cwd_versions_deinit(b);
        cwd_inherited_deinit(b);
        cwd_sessions_deinit(b);
        cwd_claims_deinit(b);
        cwd_fences_deinit(b);
        cwd_slabs_deinit(b);
        cwd_reclaim_deinit(b);
    }
    cwd_rendezvous_leave(b);
    cwd_closer_free(b->untrusted_closer);
    cwd_closer_free(b->closer);
    b->closer = b->untrusted_closer = NULL;
    cw_directory_writer_free(b->directory);
    b->directory = NULL;
    cwd_errors_at(NULL);
    cw_segment_close(&b->root_segment);
    b->root = NULL;
    cwd_verdict_deinit(b);
    cwd_loop_deinit(b);
}
