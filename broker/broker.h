/*
 * The broker: one struct that owns all, built in order and unwound in reverse (broker.c).
 *
 * Everything in it belongs to the one thread of the loop (loop.c), but for the closers' queues.
 * Words used throughout: session (one client's connection), slab (two descriptors in the registry),
 * reference (the broker's own hold on a block: a name, a transit, a fork), suspect (a block that
 * perhaps nobody holds any more).
 */
#ifndef CW_BROKER_BROKER_H
#define CW_BROKER_BROKER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "broker/core/limits.h"
#include "broker/roles/mover.h"
#include "broker/memory/reclaim.h"
#include "broker/roles/remote.h"
#include "broker/roles/verdict.h"
#include "broker/session/pace.h"
#include "ipc/request/address.h"
#include "shm/base/alive.h"
#include "shm/session/monitor.h"

struct cwd_closer;
struct cwd_session;
struct cwd_slab;
struct cwd_transit;
struct cwd_early_end;
struct cwd_group;
struct cwd_version;
struct cwd_fence_page;
struct cwd_wait_group;
struct cwd_claim;
struct cwd_inherited;
struct cwd_job;
struct cwd_link;

/* Exit codes of the program, as --help tells them. */
enum cwd_exit {
    CWD_EXIT_OK = 0,
    CWD_EXIT_FAILED = 1,
    CWD_EXIT_USAGE = 2,
    CWD_EXIT_RUNS = 3,  /* another broker runs */
    CWD_EXIT_FOLDER = 4 /* the socket folder cannot be trusted or made */
};

struct cwd_options {
    const char *place;       /* for cw_address_find; NULL: the user's own */
    const char *config_file; /* NULL: the usual ones */
    int64_t idle_exit_ns;    /* < 0: never */
    bool foreground;
    bool bridge;                      /* the command line asks for one */
    struct cwd_remote_options remote; /* the broker's from cwd_broker_init() on */
};

struct cwd_broker {
    struct cw_alive_keeper alive; /* its loop's thread */
    struct cwd_limits limits;
    uint64_t turn; /* of the loop; from 1 */
    int64_t idle_exit_ns;
    uint64_t instance; /* random, never 0 */

    /* rendezvous.c */
    struct cw_address address;
    int folder_fd, lock_fd, listen_fd;

    /* broker.c */
    struct cw_segment root_segment;
    struct cw_root *root;
    struct cw_directory_writer *directory;
    struct cwd_closer *closer;           /* of memory and other descriptors that we know */
    struct cwd_closer *untrusted_closer; /* of what we did not expect */

    /* loop.c */
    int epoll_fd, signal_fd;
    int closed_fd;  /* rung by the closers: figures have changed */
    int64_t now_ns; /* CLOCK_MONOTONIC at the begin of this turn */
    int64_t accept_after_ns;
    int64_t wake_again_ns; /* a wake-up that the kernel had no memory for is due again; INT64_MAX */
    bool accepting, stopping;
    const char *stop_reason;
    enum cwd_exit exit_code; /* with which the program ends */

    /* session.c */
    struct cwd_session *sessions; /* by id; all that have not ended */
    struct cwd_session *ended;    /* to be freed at the end of the turn */
    struct cwd_session *dropped;  /* to be settled at the end of the turn, before that */
    uint32_t next_session;
    uint32_t clients;         /* sessions that said HELLO and have not ended */
    struct cwd_pace refused;  /* clients of each process (hello.c) */
    struct cwd_pace refusals; /* requests of each process (refusals.h) */
    int64_t resume_ns;        /* when a session that pauses is read again; INT64_MAX: none does */
    uint32_t admins[2];       /* of these, who came to change a limit, or to look (hello.c) */
    uint32_t connecting;      /* sessions that did not say HELLO yet */
    int64_t last_client_ns;

    /* slabs.c */
    struct cwd_slab *slabs;   /* by id */
    struct cwd_slab *suspect; /* orphans that are perhaps empty */
    uint32_t next_slab, orphans;
    uint64_t sweeps;                      /* looks at the suspects, counted */
    uint64_t bytes;                       /* of data and tables of registered slabs */
    uint64_t gpu_bytes, gpu_orphan_bytes; /* of GPU memory, as it was declared */
    uint64_t fds;                         /* descriptors held for clients: see cwd_fds_held() */

    struct cwd_reclaim reclaim;          /* reclaim.c */
    uint64_t kept_names;                 /* names.c: with CW_ENTRY_KEEP */
    struct cwd_tie *ties;                /* ties.c: by the number of the put */
    struct cwd_tie *tie_floor;           /* of no name: the table is never empty */
    struct cwd_transit *transits;        /* transit.c: by token */
    struct cwd_transit *transit_floor;   /* of no session: the table is never empty */
    uint32_t transits_ready;             /* of all sessions: what they may still begin */
    struct cwd_transit *transit_first;   /* in the order of their limits */
    struct cwd_transit *transit_soon;    /* the same of those that live for pickle_seconds */
    struct cwd_transit *transits_opened; /* and may be opened again, the longest opened one first */
    uint64_t transits_opened_bytes;
    struct cwd_transit *transits_kept; /* those that end with a session */
    struct cwd_anchor *anchors;        /* to what some are tied, by block */
    struct cwd_early_end *early_ends;  /* by token */
    struct cwd_group *groups;          /* groups.c: by anchor */
    struct cwd_group *groups_ended;    /* of those whose anchor is free: they end next */
    struct cwd_weak_name *weak_names;  /* weak_names.c: by block */
    bool weak_names_ended;             /* some, and the bridge was not told yet */
    uint32_t grouped;                  /* groups and their members */
    struct cwd_version *versions;      /* versions.c: by number */
    struct cwd_version *version_floor; /* of no tree: the table is never empty */
    struct cwd_wait_group *waits;      /* waits.c: by key */
    uint32_t waiting;
    struct cwd_claim *claims;           /* claims.c: by key */
    struct cwd_claim *claims_over;      /* of whose end others are to be told */
    struct cwd_fence_page *fence_pages; /* fences.c: by number */
    uint32_t next_fence_page;
    int64_t poison_ns; /* when to poison the buried again; INT64_MAX: nobody is */
    bool settling;     /* fences.c: a pass over all tables is under way; from where on: */
    uint32_t settle_slab, settle_order;
    struct cwd_inherited *inherited; /* inherited.c: by id */
    uint32_t next_inherited;
    struct cwd_job *jobs; /* copy_jobs.c: those that wait, and those that the mover has */
    uint64_t next_job;
    uint32_t job_count;
    struct cwd_mover mover;   /* mover.c */
    struct cwd_link *links;   /* routes.c: by both UUIDs */
    struct cwd_remote remote; /* remote.c */
    struct cwd_deeds *deeds;  /* once.c: by peer */
    struct cwd_verdict verdict;
};

/* Descriptors held, those included that a closer has not closed yet. */
uint64_t cwd_fds_held(struct cwd_broker *broker);

/* Builds everything up to a listening socket. Returns 0 or a negative code; *exit_code then says
 * how the program ends. The options are borrowed during the call. */
int cwd_broker_init(struct cwd_broker *broker, const struct cwd_options *options,
                    enum cwd_exit *exit_code);
/* Unwinds what init built, also half of it. May be repeated. */
void cwd_broker_deinit(struct cwd_broker *broker);

#endif
