/*
 * Requests to other nodes at the broker: cableway-bridge is played by this very program, started by
 * the broker as the bridge is. What it does with a job stands in its environment.
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

#define SLAB_BYTES (1u << 20)
#define BLOCKS     16u
#define DEEDS      16384u /* of one asker that are kept */

static struct raw_mail mail;
static struct raw_broker broker;
static char self[PATH_MAX];

static const char replica[] = "\0//b/x"; /* a key, without its last NUL */
#define REPLICA_BYTES (sizeof replica - 1)

/* ---- the bridge ---- */

static bool is_there(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s.%s", getenv("GO"), name);
    return access(path, F_OK) == 0;
}

static void touch(const char *go, const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s.%s", go, name);
    close(open(path, O_WRONLY | O_CREAT, 0600));
}

/* Names an array as only a bridge may. */
static int put_replica(struct raw_client *client) {
    struct raw_slab slab;
    struct {
        struct cw_put put;
        char rest[REPLICA_BYTES + 4];
    } body = {.put = {.flags = CW_PUT_REPLACE, .key_bytes = REPLICA_BYTES, .meta_bytes = 4}};
    if (raw_slab_add(client, SLAB_BYTES, BLOCKS, &slab) != 0)
        return -1;
    body.put.slab = slab.id;
    body.put.gen = raw_carve(client, &slab, 0, 0, 4096);
    body.put.size_bytes = 16;
    memcpy(body.rest, replica, REPLICA_BYTES);
    return raw_call(client, CW_OP_PUT, &body, sizeof body.put + REPLICA_BYTES + 4, &mail);
}

/* Names an array "\0X", X being that letter. */
static int put_letter(struct raw_client *client, const struct raw_slab *slab, uint64_t gen,
                      char letter) {
    struct {
        struct cw_put put;
        char rest[2 + 4];
    } body = {.put = {.flags = CW_PUT_REPLACE,
                      .slab = slab->id,
                      .gen = gen,
                      .size_bytes = 16,
                      .key_bytes = 2,
                      .meta_bytes = 4},
              .rest = {0, letter}};
    return raw_call(client, CW_OP_PUT, &body, sizeof body.put + 6, &mail);
}

static bool post_changes(struct raw_client *client, uint64_t id, uint64_t seen, bool news) {
    struct cw_changes changes = {.seen = seen, .news = news};
    return raw_post(client, CW_OP_CHANGES, id, &changes, sizeof changes) == 0;
}

/* The next reply is that one, and tells so many ends. */
static bool told(struct raw_client *client, uint64_t id, uint32_t count, uint32_t all,
                 uint64_t *seen) {
    struct cw_changed changed = {.count = 0};
    if (raw_reply(client, &mail, RAW_TIMEOUT_MS) != 1 || mail.head.id != id ||
        mail.head.status != 0 || mail.body_bytes > sizeof changed)
        return false;
    memcpy(&changed, mail.body, mail.body_bytes);
    *seen = changed.seen;
    return changed.count == count && changed.all == all &&
           mail.body_bytes == offsetof(struct cw_changed, ended) + count * sizeof(uint64_t);
}

/* CHANGES: new names are told only to who asks for them, ends always, and each once. */
static bool changes_are_told(struct raw_client *client, struct raw_client *other) {
    struct raw_slab slab;
    uint64_t seen, before;
    if (raw_slab_add(other, SLAB_BYTES, BLOCKS, &slab) != 0)
        return false;
    uint64_t gen = raw_carve(other, &slab, 0, 0, 4096);
    bool good = put_letter(other, &slab, gen, 'x') == 0 && post_changes(client, 900, 0, false);
    good = good && put_letter(other, &slab, gen, 'y') == 0;
    good = good && post_changes(client, 901, UINT64_MAX, true) && told(client, 900, 0, 0, &before);
    good = good && told(client, 901, 0, 0, &seen) && seen == before;
    good = good && post_changes(client, 902, seen, true);
    good = good && put_letter(other, &slab, gen, 'z') == 0 && told(client, 902, 0, 0, &seen);
    good = good && seen == before + 1 && post_changes(client, 903, seen, false);
    good = good && put_letter(other, &slab, gen, 'w') == 0; /* tells nobody */
    good = good && put_letter(other, &slab, gen, 'x') == 0 && told(client, 903, 1, 0, &seen);
    for (unsigned i = 0; i <= CW_CHANGES_MAX && good; i++)
        good = put_letter(other, &slab, gen, 'x') == 0;
    good = good && post_changes(client, 904, seen, false);
    good = good && told(client, 904, CW_CHANGES_MAX, 1, &seen);
    good = good && post_changes(client, 905, seen, false);
    return good && put_letter(other, &slab, gen, 'x') == 0 && told(client, 905, 1, 0, &seen);
}

/* One of a peer's puts or removes, of the name "\0x". */
static int deed(struct raw_client *client, const struct cw_deed *asked, const struct raw_slab *slab,
                uint64_t gen) {
    struct {
        struct cw_deed deed;
        union {
            struct {
                struct cw_put put;
                char rest[2 + 4];
            } put;
            struct {
                struct cw_key key;
                char rest[2];
            } remove;
        };
    } body = {.deed = *asked};
    uint32_t bytes = sizeof body.deed;
    if (asked->verb == CW_DEED_PUT) {
        body.put.put = (struct cw_put){.flags = CW_PUT_REPLACE,
                                       .slab = slab->id,
                                       .gen = gen,
                                       .size_bytes = 16,
                                       .key_bytes = 2,
                                       .meta_bytes = 4};
        body.put.rest[1] = 'x';
        bytes += sizeof body.put.put + 6;
    } else if (asked->verb == CW_DEED_REMOVE) {
        body.remove.key.key_bytes = 2;
        body.remove.rest[1] = 'x';
        bytes += sizeof body.remove.key + 2;
    }
    return raw_call(client, CW_OP_DEED, &body, bytes, &mail);
}

/* Each is done once; what was not done may be done; what is settled is refused; what had to be
 * forgotten is not known. */
static bool deeds_are_done_once(struct raw_client *client) {
    struct raw_slab slab;
    struct cw_deed first = {"a", 7, 1, 1, CW_DEED_PUT, 0},
                   second = {"a", 7, 2, 1, CW_DEED_REMOVE, 0};
    if (raw_slab_add(client, SLAB_BYTES, BLOCKS, &slab) != 0)
        return false;
    uint64_t gen = raw_carve(client, &slab, 0, 0, 4096);
    bool good = deed(client, &first, &slab, gen) == 0 && deed(client, &second, &slab, gen) == 0;
    good = good && deed(client, &first, &slab, gen) == 0; /* it was done: nothing is there again */
    struct cw_deed third = {"a", 7, 3, 1, CW_DEED_REMOVE, 0};
    good = good && deed(client, &third, &slab, gen) == -ENOENT;
    good = good && put_letter(client, &slab, gen, 'x') == 0;
    good = good && deed(client, &second, &slab, gen) == 0; /* the same */
    third.again = 1;
    good = good && deed(client, &third, &slab, gen) == 0 && deed(client, &third, &slab, gen) == 0;
    struct cw_deed others = {"b", 7, 1, 1, CW_DEED_ASK, 1}, run = {"a", 8, 1, 1, CW_DEED_ASK, 1};
    good = good && deed(client, &others, &slab, gen) == -ENOENT;
    good = good && deed(client, &run, &slab, gen) == -ENOENT;
    struct cw_deed ask = {"a", 7, 3, 3, CW_DEED_ASK, 1};
    good = good && deed(client, &ask, &slab, gen) == 0;
    good = good && deed(client, &second, &slab, gen) == -ECANCELED;
    for (uint64_t number = 5; number < 5 + DEEDS && good; number++) {
        struct cw_deed more = {"a", 7, number, 3, CW_DEED_PUT, 0};
        good = deed(client, &more, &slab, gen) == 0;
    }
    good = good && deed(client, &ask, &slab, gen) == -EREMOTEIO;
    ask.number = 4 + DEEDS;
    good = good && deed(client, &ask, &slab, gen) == 0;
    ask.number++;
    return good && deed(client, &ask, &slab, gen) == -ENOENT;
}

/* $ACT: "done" and "fail" answer, "die" dies with the first job (GO.died), "hold" makes GO.has and
 * waits for GO.go, "replica" names one and holds, "leave" ends before it asks. What it is told of
 * as cancelled makes GO.cancelled. "changes" asks for changes and makes some: GO.has, if all was
 * told as it should be. "deeds" does some: GO.has, if they were done as they should be. */
static int act_as_bridge(const char *socket_path) {
    const char *act = getenv("ACT"), *go = getenv("GO");
    struct raw_broker at = {.pid = 0};
    struct raw_client client, other;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the tests kill their brokers */
    if (strcmp(act, "leave") == 0)
        return 7;
    if (cw_address_find(socket_path, &at.address) != 0 || raw_connect(&at, &client) != 0)
        return 1;
    while (raw_call(&client, CW_OP_REMOTE_NEXT, NULL, 0, &mail) == 0) {
        struct cw_remote_job job;
        struct {
            struct cw_remote_end end;
            char text[sizeof "no such luck"]; /* what is said ends before its NUL */
        } word = {.text = "no such luck"};
        if (mail.body_bytes < sizeof job)
            return 1;
        memcpy(&job, mail.body, sizeof job);
        if (job.cancelled) {
            touch(go, "cancelled");
            continue;
        }
        if (strcmp(act, "die") == 0 && !is_there("died")) {
            touch(go, "died");
            return 1;
        }
        struct cw_remote asked;
        memcpy(&asked, mail.body + sizeof job, sizeof asked);
        if (job.deed != (asked.verb == CW_REMOTE_REMOVE) || job.settled != job.deed ||
            job.handed != (strcmp(act, "die") == 0))
            return 1;
        if (strcmp(act, "deeds") == 0) {
            if (!deeds_are_done_once(&client))
                return 1;
            touch(go, "has");
        }
        if (strcmp(act, "changes") == 0) {
            if (raw_connect(&at, &other) != 0 || !changes_are_told(&client, &other))
                return 1;
            touch(go, "has");
        }
        if (strcmp(act, "replica") == 0 && put_replica(&client) != 0)
            return 1;
        if (strcmp(act, "hold") == 0 || strcmp(act, "replica") == 0) {
            touch(go, "has");
            if (strcmp(act, "hold") == 0)
                continue; /* asks for the next, and never answers this one */
            while (!is_there("go"))
                raw_pause();
            return 0;
        }
        bool fails = strcmp(act, "fail") == 0;
        word.end = (struct cw_remote_end){.job = job.job, .status = fails ? -EREMOTEIO : 0};
        if (raw_post(&client, CW_OP_REMOTE_DONE, 77, &word,
                     (uint32_t)sizeof word.end + (fails ? 12 : 0)) != 0)
            return 1;
    }
    return 0;
}

/* ---- the client ---- */

struct request {
    struct cw_remote remote;
    char key[REPLICA_BYTES];
};

static struct request wish(void) {
    struct request request = {.remote = {.verb = CW_REMOTE_GET, .key_bytes = REPLICA_BYTES}};
    memcpy(request.key, replica, REPLICA_BYTES);
    return request;
}

static char go_path[128];

static void begin(struct raw_client *client, const char *act) {
    static char program[PATH_MAX + 32], what[64], go[160];
    const char *environment[] = {program, what, go, NULL};
    snprintf(program, sizeof program, "CABLEWAY_BRIDGE=%s", self);
    snprintf(what, sizeof what, "ACT=%s", act);
    snprintf(go_path, sizeof go_path, "/tmp/cw-remote-%d", (int)getpid());
    snprintf(go, sizeof go, "GO=%s", go_path);
    assert_true(raw_broker_start(&broker, NULL, environment));
    assert_int_equal(raw_connect(&broker, client), 0);
}

static bool made(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s.%s", go_path, name);
    return access(path, F_OK) == 0;
}

static void end(struct raw_client *client) {
    static const char *const names[] = {"has", "go", "died", "cancelled"};
    char path[160];
    raw_bye(client);
    raw_broker_remove(&broker);
    for (unsigned i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s.%s", go_path, names[i]);
        unlink(path);
    }
}

static int ask(struct raw_client *client, const struct request *request) {
    return raw_call(client, CW_OP_REMOTE, request, sizeof request->remote + REPLICA_BYTES, &mail);
}

static void what_the_bridge_says_is_what_the_client_hears(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    begin(&client, "done");
    assert_int_equal(ask(&client, &request), 0);
    assert_int_equal(ask(&client, &request), 0);
    end(&client);
    begin(&client, "fail");
    assert_int_equal(ask(&client, &request), -EREMOTEIO);
    assert_memory_equal(mail.body, "no such luck", 12);
    end(&client);
}

static void a_bridge_that_dies_leaves_its_job_to_the_next(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    begin(&client, "die");
    assert_int_equal(ask(&client, &request), 0);
    assert_true(made("died"));
    end(&client);
    request.remote.verb = CW_REMOTE_REMOVE; /* it has its number again */
    begin(&client, "die");
    assert_int_equal(ask(&client, &request), 0);
    end(&client);
}

static void what_a_peer_asks_for_is_done_once(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    begin(&client, "deeds");
    assert_int_equal(ask(&client, &request), 0);
    assert_true(made("has"));
    end(&client);
}

static void a_bridge_that_cannot_run_is_told_with_its_reason(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    begin(&client, "leave");
    assert_int_equal(ask(&client, &request), -EREMOTEIO);
    assert_int_equal(raw_call(&client, CW_OP_PING, NULL, 0, &mail), 0);
    end(&client);
}

static void a_bridge_that_is_not_there_is_looked_for_with_each_request(void **state) {
    (void)state;
    char link_path[128], program[160];
    const char *environment[] = {program, "ACT=done", NULL};
    struct raw_client client;
    struct request request = wish();
    snprintf(link_path, sizeof link_path, "/tmp/cw-remote-link-%d", (int)getpid());
    snprintf(program, sizeof program, "CABLEWAY_BRIDGE=%s", link_path);
    assert_true(raw_broker_start(&broker, NULL, environment));
    assert_int_equal(raw_connect(&broker, &client), 0);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(ask(&client, &request), -EREMOTEIO);
        mail.body[mail.body_bytes] = 0;
        assert_non_null(strstr((char *)mail.body, "cannot be run"));
    }
    assert_int_equal(symlink(self, link_path), 0); /* now it is installed */
    assert_int_equal(ask(&client, &request), 0);
    end(&client);
    unlink(link_path);
}

static void a_cancelled_request_is_answered_and_the_bridge_hears_of_it(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    struct cw_cancel cancel = {.id = 4242};
    begin(&client, "hold");
    assert_int_equal(
        raw_post(&client, CW_OP_REMOTE, 4242, &request, sizeof request.remote + REPLICA_BYTES), 0);
    assert_true(RAW_UNTIL(made("has")));
    assert_int_equal(raw_post(&client, CW_OP_CANCEL, 4243, &cancel, sizeof cancel), 0);
    assert_int_equal(raw_reply(&client, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.status, -ECANCELED);
    assert_true(RAW_UNTIL(made("cancelled")));
    end(&client);
}

static void a_replicas_name_goes_with_the_bridge(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    begin(&client, "replica");
    assert_int_equal(
        raw_post(&client, CW_OP_REMOTE, 4242, &request, sizeof request.remote + REPLICA_BYTES), 0);
    assert_true(RAW_UNTIL(made("has")));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_names) == 1));
    touch(go_path, "go");
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_names) == 0));
    end(&client);
}

static void the_bridge_hears_which_names_ended(void **state) {
    (void)state;
    struct raw_client client;
    struct request request = wish();
    begin(&client, "changes");
    assert_int_equal(ask(&client, &request), 0);
    assert_true(made("has"));
    end(&client);
}

static void what_belongs_to_the_bridge_is_refused_to_others(void **state) {
    (void)state;
    struct raw_client client, liar;
    struct cw_changes changes = {.seen = 1};
    struct cw_remote_end lie = {.job = 1};
    struct {
        struct cw_replica head;
        char key[REPLICA_BYTES];
    } name = {.head = {.put = {.key_bytes = REPLICA_BYTES}}};
    struct {
        struct cw_key head;
        char key[REPLICA_BYTES];
    } remove = {.head = {.key_bytes = REPLICA_BYTES}};
    memcpy(remove.key, replica, REPLICA_BYTES);
    const struct cw_deed ask_deed = {"a", 7, 1, 1, CW_DEED_ASK, 0};
    begin(&client, "hold");
    assert_int_equal(deed(&client, &ask_deed, NULL, 0), -EPERM);
    assert_int_equal(raw_call(&client, CW_OP_REMOTE_NEXT, NULL, 0, &mail), -EPERM);
    assert_int_equal(raw_call(&client, CW_OP_CHANGES, &changes, sizeof changes, &mail), -EPERM);
    assert_int_equal(put_replica(&client), -EINVAL);
    assert_int_equal(
        raw_call(&client, CW_OP_REMOVE, &remove, sizeof remove.head + REPLICA_BYTES, &mail),
        -EINVAL);
    assert_int_equal(raw_connect(&broker, &liar), 0);
    assert_int_equal(raw_post(&liar, CW_OP_REMOTE_DONE, 1, &lie, sizeof lie), 0);
    assert_true(raw_dropped(&liar));
    raw_close(&liar);
    memcpy(name.key, replica, REPLICA_BYTES);
    assert_int_equal(raw_connect(&broker, &liar), 0);
    assert_int_equal(raw_post(&liar, CW_OP_REPLICA, 1, &name, sizeof name.head + REPLICA_BYTES), 0);
    assert_true(raw_dropped(&liar));
    raw_close(&liar);
    end(&client);
}

static void a_request_whose_lengths_lie_drops_its_client(void **state) {
    (void)state;
    struct raw_client client, liar;
    struct request request = wish();
    begin(&client, "hold");
    for (unsigned i = 0; i < 4; i++) {
        struct request bent = request;
        bent.remote.key_bytes = i == 0 ? 4000 : i == 1 ? 3 : REPLICA_BYTES;
        bent.remote.meta_bytes = i == 2 ? 1 : 0;
        bent.remote.reserved = i == 3;
        assert_int_equal(raw_connect(&broker, &liar), 0);
        assert_int_equal(
            raw_post(&liar, CW_OP_REMOTE, 1, &bent, sizeof bent.remote + REPLICA_BYTES), 0);
        assert_true(raw_dropped(&liar));
        raw_close(&liar);
    }
    end(&client);
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "run") == 0)
        return act_as_bridge(argv[3]);
    assert_true(realpath(argv[0], self) != NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_bridge_says_is_what_the_client_hears),
        cmocka_unit_test(a_bridge_that_dies_leaves_its_job_to_the_next),
        cmocka_unit_test(a_bridge_that_cannot_run_is_told_with_its_reason),
        cmocka_unit_test(a_bridge_that_is_not_there_is_looked_for_with_each_request),
        cmocka_unit_test(a_cancelled_request_is_answered_and_the_bridge_hears_of_it),
        cmocka_unit_test(a_replicas_name_goes_with_the_bridge),
        cmocka_unit_test(the_bridge_hears_which_names_ended),
        cmocka_unit_test(what_a_peer_asks_for_is_done_once),
        cmocka_unit_test(what_belongs_to_the_bridge_is_refused_to_others),
        cmocka_unit_test(a_request_whose_lengths_lie_drops_its_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
