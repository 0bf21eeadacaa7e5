/*
 * The end of a client whose requests the bridge has, while the bridge has not heard of others that
 * nobody wants any more, for want of room in its ring. This very program plays the bridge. (A job
 * that is used after the bridge was told of it shows under AddressSanitizer.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define PINGS_READ 200u   /* so that what fills the ring does not end where the ring does */
#define PINGS_MOST 16384u /* more than both rings take */
#define ROOM_BYTES 1064u  /* with less in its reply ring a client is not served */
#define FILL_BYTES 1008u  /* of a job that leaves no room for even one without a body */

static struct raw_mail mail;
static struct raw_broker broker;
static char self[PATH_MAX], go_path[128];

static const char key[] = "\0//b/x"; /* without its last NUL */
#define KEY_BYTES (sizeof key - 1)

static bool is_there(const char *go, const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s.%s", go, name);
    return access(path, F_OK) == 0;
}

static void touch(const char *go, const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s.%s", go, name);
    close(open(path, O_WRONLY | O_CREAT, 0600));
}

/* ---- the bridge ---- */

static unsigned jobs, cancelled; /* that it was told */

static void note(const void *payload, uint32_t length) {
    struct cw_message head;
    struct cw_remote_job job;
    memcpy(&head, payload, sizeof head);
    if (head.op != (CW_OP_REMOTE_NEXT | CW_OP_REPLY) || length < sizeof head + sizeof job)
        return;
    memcpy(&job, (const uint8_t *)payload + sizeof head, sizeof job);
    jobs += job.job != 0 && !job.cancelled;
    cancelled += job.cancelled;
}

/* Reads what is there. It does not ring: a broker that sleeps sleeps on. */
static void read_in_silence(struct raw_client *client) {
    uint32_t type, length;
    const void *payload;
    while (cw_ring_peek(&client->replies, &type, &payload, &length) == 1) {
        note(payload, length);
        cw_ring_consume(&client->replies);
    }
}

static uint64_t room_bytes(const struct raw_client *client) {
    struct cw_ring_consumer ahead = client->replies;
    uint32_t type, length;
    const void *payload;
    while (cw_ring_look_on(&ahead, &type, &payload, &length) == 1)
        continue;
    return CW_CHANNEL_BYTES - (ahead.head - client->replies.head);
}

/* Asks for so much without reading that the ring of its replies is full. */
static bool fill(struct raw_client *client) {
    for (unsigned i = 0; i < CW_REMOTE_NEXTS_MAX; i++)
        if (raw_post(client, CW_OP_REMOTE_NEXT, ++client->next_id, NULL, 0) != 0)
            return false;
    for (unsigned i = 0; i < PINGS_MOST && room_bytes(client) >= ROOM_BYTES; i++) {
        uint8_t *place;
        while (cw_ring_reserve(&client->requests, sizeof(struct cw_message), (void **)&place) != 0)
            raw_pause(); /* the broker is slower than this */
        struct cw_message head = {
            .size_bytes = sizeof head, .op = CW_OP_PING, .id = ++client->next_id};
        memcpy(place, &head, sizeof head);
        cw_ring_commit(&client->requests, CW_OP_PING, sizeof head);
        raw_ring(client);
    }
    return room_bytes(client) < ROOM_BYTES;
}

/* What comes in from other nodes through the bridge raises no limit of this one. */
static bool may_set_no_limit(struct raw_client *client) {
    struct {
        struct cw_limit_set set;
        char name[sizeof "max_names"];
    } body = {.set = {.value = 5, .name_bytes = 9}, .name = "max_names"};
    uint32_t size_bytes = sizeof body.set + body.set.name_bytes; /* without its NUL */
    return raw_call(client, CW_OP_LIMIT_SET, &body, size_bytes, &mail) == -EPERM;
}

/* Takes two jobs, fills its ring (GO.full), empties it after GO.go without a word (GO.empty), and
 * then hears which jobs nobody wants any more: two (GO.told). */
static int act_as_bridge(const char *socket_path) {
    const char *go = getenv("GO");
    struct raw_broker at = {.pid = 0};
    struct raw_client client;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the tests kill their brokers */
    if (cw_address_find(socket_path, &at.address) != 0 || raw_connect(&at, &client) != 0)
        return 1;
    if (!may_set_no_limit(&client))
        return 1;
    while (jobs < 2) {
        if (raw_call(&client, CW_OP_REMOTE_NEXT, NULL, 0, &mail) != 0)
            return 1;
        struct cw_remote_job job = {.job = 0};
        memcpy(&job, mail.body, mail.body_bytes < sizeof job ? mail.body_bytes : sizeof job);
        jobs += job.job != 0;
    }
    for (unsigned i = 0; i < PINGS_READ; i++)
        if (raw_call(&client, CW_OP_PING, NULL, 0, &mail) != 0)
            return 1;
    if (!fill(&client))
        return 1;
    touch(go, "full");
    while (!is_there(go, "go"))
        raw_pause();
    read_in_silence(&client);
    touch(go, "empty");
    while (cancelled < 2) {
        read_in_silence(&client);
        raw_pause();
    }
    touch(go, "told");
    pause();
    return 0;
}

/* ---- the clients ---- */

static bool made(const char *name) {
    return is_there(go_path, name);
}

/* A request whose job has so many bytes in the bridge's ring; 0: as few as may be. */
static void ask(struct raw_client *client, uint64_t id, uint32_t job_bytes) {
    struct {
        struct cw_remote remote;
        uint8_t rest[FILL_BYTES];
    } request = {.remote = {.verb = CW_REMOTE_GET, .key_bytes = KEY_BYTES}};
    uint32_t least = sizeof(struct cw_message) + sizeof(struct cw_remote_job) +
                     sizeof request.remote + KEY_BYTES;
    memcpy(request.rest, key, KEY_BYTES);
    request.remote.meta_bytes = (uint16_t)(job_bytes ? job_bytes - least : 0);
    assert_int_equal(
        raw_post(client, CW_OP_REMOTE, id, &request,
                 (uint32_t)sizeof request.remote + KEY_BYTES + request.remote.meta_bytes),
        0);
}

static void the_end_of_one_client_tells_of_what_others_gave_up(void **state) {
    (void)state;
    static char program[PATH_MAX + 32], go[160];
    const char *environment[] = {program, go, NULL};
    struct raw_client client, ends;
    struct cw_cancel cancel = {.id = 4242};
    snprintf(program, sizeof program, "CABLEWAY_BRIDGE=%s", self);
    snprintf(go_path, sizeof go_path, "/tmp/cw-remote-ends-%d", (int)getpid());
    snprintf(go, sizeof go, "GO=%s", go_path);
    assert_true(raw_broker_start(&broker, NULL, environment));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_connect(&broker, &ends), 0);
    ask(&ends, 4241, 0);
    assert_int_equal(raw_ping(&ends), 0); /* it comes first */
    ask(&client, 4242, 0);
    assert_true(RAW_UNTIL(made("full")));
    ask(&client, 4243, FILL_BYTES);
    assert_int_equal(raw_post(&client, CW_OP_CANCEL, 1, &cancel, sizeof cancel), 0);
    assert_int_equal(raw_reply(&client, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, 4242);
    assert_int_equal(mail.head.status, -ECANCELED); /* of which the bridge has not heard yet */
    assert_true(RAW_UNTIL(raw_rests(&broker, 20)));
    touch(go_path, "go");
    assert_true(RAW_UNTIL(made("empty")));
    raw_bye(&ends); /* now there is room for both */
    assert_true(RAW_UNTIL(made("told")));
    assert_int_equal(raw_ping(&client), 0);
    raw_bye(&client);
    raw_broker_remove(&broker);
    for (const char *const *name = (const char *[]){"full", "go", "empty", "told", NULL}; *name;
         name++) {
        char path[160];
        snprintf(path, sizeof path, "%s.%s", go_path, *name);
        unlink(path);
    }
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "run") == 0)
        return act_as_bridge(argv[3]);
    assert_true(realpath(argv[0], self) != NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_one_client_tells_of_what_others_gave_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
