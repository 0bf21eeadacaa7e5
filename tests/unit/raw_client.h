/*
 * Raw client: speaks the wire format (ipc/wire.h) byte by byte, without libcableway, so that a test
 * can also say what no library would. With it comes a broker of its own for each test.
 *
 * Nothing here asserts: tests, hostile clients and fuzzers decide what is right.
 */
#ifndef CW_TESTS_UNIT_RAW_CLIENT_H
#define CW_TESTS_UNIT_RAW_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/request/address.h"
#include "ipc/wire.h"
#include "shm/blocks/block.h"
#include "shm/session/monitor.h"
#include "shm/session/session.h"

#define RAW_FDS_MAX    8
#define RAW_TIMEOUT_MS 20000 /* a test that waits so long has failed */

/* ---- a broker ---- */
struct raw_broker {
    char folder[64];
    struct cw_address address;
    pid_t pid; /* our child; 0 when it was reaped */
    struct cw_segment root_segment;
    struct cw_root *root;
    int errors; /* its standard error, to be read */
    char said[8192];
    size_t said_bytes;
};
/* Makes a fresh folder. */
void raw_broker_folder(struct raw_broker *broker);
/* Starts cablewayd --foreground with these further arguments (NULL at the end; may be NULL) in the
 * folder, without waiting. environment: "NAME=VALUE" strings, NULL at the end, or NULL. */
void raw_broker_spawn(struct raw_broker *broker, const char *const *arguments,
                      const char *const *environment);
/* Waits until it listens and maps its root segment. False: it ended. */
bool raw_broker_ready(struct raw_broker *broker);
/* folder, spawn, ready. */
bool raw_broker_start(struct raw_broker *broker, const char *const *arguments,
                      const char *const *environment);
/* Waits for its end: exit code, 128 + signal, or -1 when it goes on. */
int raw_broker_reap(struct raw_broker *broker, int timeout_ms);
/* Kills it if it runs, removes the folder. */
void raw_broker_remove(struct raw_broker *broker);
/* For a test's end: does it live, and have all clients gone, within RAW_TIMEOUT_MS? If not, prints
 * what it said. Removes it. 0 or -1. */
int raw_broker_finish(struct raw_broker *broker);
/* What it said on standard error so far. */
const char *raw_broker_said(struct raw_broker *broker);
/* For how long it has run on a core, which a busy machine does not change. */
int64_t raw_broker_ran_ns(const struct raw_broker *broker);
uint64_t raw_counter(const struct raw_broker *broker, enum cw_counter which);
/* Whether nothing wakes the broker for so long. */
bool raw_rests(const struct raw_broker *broker, int ms);
uint64_t raw_gauge(const struct raw_broker *broker, enum cw_gauge which);

/* Looks every 0.2 ms until condition holds; false after RAW_TIMEOUT_MS. */
#define RAW_UNTIL(condition)                                                                       \
    ({                                                                                             \
        int64_t raw_end_ns = cw_now_ns() + RAW_TIMEOUT_MS * 1000000ll;                             \
        while (!(condition) && cw_now_ns() < raw_end_ns)                                           \
            raw_pause();                                                                           \
        (condition);                                                                               \
    })
void raw_pause(void);

/* ---- messages ---- */
struct raw_mail {
    struct cw_message head;
    uint8_t body[CW_MESSAGE_MAX];
    uint32_t body_bytes;
    int fds[RAW_FDS_MAX];
    uint32_t fd_count;
};
/* A connected socket, or < 0. */
int raw_dial(const struct raw_broker *broker);
/* One datagram. 0 or a negative errno. */
int raw_send(int sock, const void *bytes, size_t size_bytes, const int *fds, uint32_t fd_count);
/* One message: 1, 0 at the end of file, -ETIMEDOUT, another negative code. */
int raw_receive(int sock, struct raw_mail *mail, int timeout_ms);
void raw_mail_close(struct raw_mail *mail);
/* Sends a HELLO with this descriptor (< 0: none); the reply is to be received. */
int raw_say_hello(int sock, uint32_t version_min, uint32_t version_max, int pidfd);
int raw_pidfd(pid_t pid);

/* ---- a client ---- */
struct raw_client {
    int sock, doorbell, bell;
    uint32_t session;
    uint64_t instance;
    struct cw_segment root_segment, session_segment;
    struct cw_root *root;
    struct cw_session *shared;
    struct cw_lease_table *leases;
    struct cw_ring_producer requests;
    struct cw_ring_consumer replies;
    uint64_t next_id;
    uint32_t tokens;
    char sentence[CW_MESSAGE_MAX]; /* of the last reply with status < 0 */
};
/* Connects, says HELLO. 0 or the refusal's status. */
int raw_connect(const struct raw_broker *broker, struct raw_client *client);
/* Closes everything without a word. */
void raw_close(struct raw_client *client);
/* BYE, then close. */
void raw_bye(struct raw_client *client);

/* Writes a request into the ring and rings if the broker sleeps. 0, -ETIMEDOUT (no room). */
int raw_post(struct raw_client *client, uint16_t op, uint64_t id, const void *body,
             uint32_t body_bytes);
/* Rings the doorbell if the broker sleeps. */
void raw_ring(struct raw_client *client);
/* The next reply of the ring: 1, 0 (the socket ended), -ETIMEDOUT. */
int raw_reply(struct raw_client *client, struct raw_mail *mail, int timeout_ms);
/* post and reply: the reply's status; -ECONNRESET when the socket ended. */
int raw_call(struct raw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
             struct raw_mail *mail);
/* The same over the socket, with descriptors. */
int raw_exchange(struct raw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                 const int *fds, uint32_t fd_count, struct raw_mail *mail);
/* Has the broker ended this connection? Waits for it; the last word goes to client->sentence. */
bool raw_dropped(struct raw_client *client);

/* ---- what clients do ---- */
struct raw_slab {
    uint32_t id;
    struct cw_segment data, table_segment;
    struct cw_block_table *table;
};
/* Makes data and table and hands them over. 0 or the reply's status. */
int raw_slab_add(struct raw_client *client, uint64_t size_bytes, uint32_t blocks,
                 struct raw_slab *out);
/* Makes them only. */
void raw_slab_make(uint64_t size_bytes, uint32_t blocks, struct raw_slab *out);
/* Opens somebody's slab; data is not mapped. */
int raw_slab_open(struct raw_client *client, uint32_t id, struct raw_slab *out);
void raw_slab_close(struct raw_slab *slab);
/* Is that block free? */
bool raw_is_free(const struct raw_slab *slab, uint32_t block);
/* Stores a lease in that slot. */
void raw_lease(struct raw_client *client, uint32_t slot, uint32_t slab, uint32_t block);
void raw_unlease(struct raw_client *client, uint32_t slot);
/* Lease (slot = block), then carve. Returns the generation. */
uint64_t raw_carve(struct raw_client *client, struct raw_slab *slab, uint32_t block,
                   uint64_t offset_bytes, uint64_t length_bytes);
int raw_put(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
            uint64_t size_bytes, const char *name, uint32_t flags);
/* With this description of the array; raw_put() has one that is none. */
int raw_put_meta(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
                 uint64_t size_bytes, const char *name, uint32_t flags, const void *meta,
                 size_t meta_bytes);
int raw_remove(struct raw_client *client, const char *name);
/* The body of REMOVE and WAIT; returns its size. */
uint32_t raw_key(const char *name, uint8_t *body);
/* Sends a WAIT; returns its id. */
uint64_t raw_wait(struct raw_client *client, const char *name);
/* BEGIN; returns the token. */
uint64_t raw_transit_begin(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen);
/* The same for so many openers. */
uint64_t raw_transit_share(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
                           uint32_t openers);
void raw_transit_opened(struct raw_client *client, uint64_t token);
void raw_transit_end(struct raw_client *client, uint64_t token);
/* The same, as who has the whole handle says it. */
void raw_transit_end_of(struct raw_client *client, uint64_t token, uint32_t slab, uint32_t block,
                        uint64_t gen);
void raw_drop(struct raw_client *client, uint32_t slab, uint32_t block, uint64_t gen);
/* Waits until all that was asked before is done: a PING and its reply, and again, since blocks are
 * looked at in the turn after, and what was freed in a turn shows at its end. */
int raw_ping(struct raw_client *client);

#endif
