/*
 * Promises of the broker about memory: registered slabs, names, waits, transits, forks, deaths.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_mail mail;
static struct raw_broker broker;

static int start(void **state) {
    static const char *const environment[] = {"CABLEWAY_TRANSIT_SECONDS=3", NULL};
    (void)state;
    return raw_broker_start(&broker, NULL, environment) ? 0 : -1;
}

/* Each test leaves a broker that lives and has nothing left in the registry but what names hold. */
static int finish(void **state) {
    (void)state;
    return raw_broker_finish(&broker);
}

static uint64_t word(struct raw_slab *slab, uint32_t block) {
    return CW_LOAD(B10, &slab->table->blocks[block].word, seq_cst);
}

/* A client in a process of its own, which hands its slab's number over and waits to be killed. */
struct victim {
    pid_t pid;
    uint32_t slab, session;
    uint64_t token;
};
enum victim_kind { VICTIM_HOLDS, VICTIM_NAMES, VICTIM_LEASES_OTHERS, VICTIM_TRANSITS };

static struct victim victim_start(enum victim_kind kind, uint32_t others_slab) {
    struct victim victim = {.pid = 0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    victim.pid = fork();
    if (victim.pid == 0) {
        struct raw_client client;
        struct raw_slab slab = {.id = 0};
        if (raw_connect(&broker, &client) != 0)
            _exit(1);
        if (kind != VICTIM_LEASES_OTHERS && raw_slab_add(&client, SLAB_BYTES, 16, &slab) != 0)
            _exit(2);
        uint64_t gen = slab.id ? raw_carve(&client, &slab, 0, 0, 8192) : 0;
        if (kind == VICTIM_NAMES &&
            raw_put(&client, slab.id, 0, gen, 8192, "orphan", CW_PUT_REPLACE) != 0)
            _exit(3);
        if (kind == VICTIM_LEASES_OTHERS)
            raw_lease(&client, 0, others_slab, 0);
        if (kind == VICTIM_TRANSITS)
            victim.token = raw_transit_begin(&client, slab.id, 0, gen);
        raw_ping(&client);
        victim.slab = slab.id;
        victim.session = client.session;
        if (write(ends[1], &victim, sizeof victim) < 0)
            _exit(4);
        pause();
        _exit(0);
    }
    pid_t pid = victim.pid;
    close(ends[1]);
    assert_int_equal(read(ends[0], &victim, sizeof victim), sizeof victim);
    victim.pid = pid;
    close(ends[0]);
    return victim;
}

static void victim_kill(struct victim *victim) {
    int status;
    kill(victim->pid, SIGKILL);
    assert_int_equal(waitpid(victim->pid, &status, 0), victim->pid);
}

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

static void slabs_are_kept_and_handed_out(void **state) {
    (void)state;
    struct raw_client maker = client_open(), user = client_open();
    struct raw_slab slab, opened;
    assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, 16, &slab), 0);
    assert_int_equal(raw_slab_open(&user, slab.id, &opened), 0);
    uint64_t gen = raw_carve(&maker, &slab, 3, 4096, 4096);
    assert_int_equal(word(&opened, 3), gen << CW_BLOCK_GEN_SHIFT | CW_BLOCK_LIVE);
    assert_int_equal(raw_slab_open(&user, slab.id + 1, &opened), -ESTALE);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 1);
    assert_true(raw_gauge(&broker, CW_GAUGE_bytes) >= SLAB_BYTES);
    /* The maker goes; nobody holds anything: the slab goes too, and who has it mapped is told. */
    raw_bye(&maker);
    assert_true(RAW_UNTIL(CW_LOAD(S2, &opened.table->closed, acquire) == 1));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    assert_true(CW_LOAD(S2, &user.shared->closed_slabs, acquire) > 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_bytes), 0);
    raw_slab_close(&slab);
    raw_slab_close(&opened);
    raw_bye(&user);
}

static void names_hold_their_arrays(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t first = raw_carve(&client, &slab, 0, 0, 4096);
    uint64_t second = raw_carve(&client, &slab, 1, 4096, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, first, 4096, "a", 0), 0);
    assert_int_equal(raw_put(&client, slab.id, 1, second, 4096, "a", 0), -EEXIST);
    assert_non_null(strstr(client.sentence, "\"a\" is taken"));
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, first);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0)); /* the name holds it */
    assert_int_equal(raw_put(&client, slab.id, 1, second, 4096, "a", CW_PUT_REPLACE), 0);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    assert_int_equal(cw_block_gen(word(&slab, 0)), first + 1);
    assert_true(RAW_UNTIL(CW_LOAD(S1, &client.shared->reclaimed, acquire) == 1));
    /* A stale generation, a place beyond the block, a block that is none. */
    assert_int_equal(raw_put(&client, slab.id, 0, first, 1, "b", 0), -ESTALE);
    assert_int_equal(raw_put(&client, slab.id, 1, second, 4097, "b", 0), -EINVAL);
    assert_int_equal(raw_put(&client, slab.id, 16, 0, 1, "b", 0), -ESTALE);
    assert_int_equal(raw_put(&client, slab.id + 9, 0, 0, 1, "b", 0), -ESTALE);
    static const char *const bad[] = {"", "/a", "a/", "a//b", "a/../b", ".", "a\nb", "\xff"};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(raw_put(&client, slab.id, 1, second, 1, bad[i], 0), -EINVAL);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_names), 1);
    /* Removed while a lease stands: it stays until that is dropped, and told. */
    assert_int_equal(raw_remove(&client, "a"), 0);
    assert_int_equal(raw_remove(&client, "a"), -ENOENT);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 1));
    assert_true(word(&slab, 1) & CW_BLOCK_WANTED);
    raw_unlease(&client, 1);
    raw_drop(&client, slab.id, 1, second);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 1)));
    raw_slab_close(&slab);
    raw_bye(&client);
}

static void a_wait_is_answered_when_the_name_comes(void **state) {
    (void)state;
    struct raw_client waiter = client_open(), client = client_open();
    struct raw_slab slab;
    uint64_t id = raw_wait(&waiter, "later"), other = raw_wait(&waiter, "never");
    assert_int_equal(raw_ping(&waiter), 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_waiting) == 2));
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "later", 0), 0);
    assert_int_equal(raw_reply(&waiter, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, id);
    assert_int_equal(mail.head.op, CW_OP_WAIT | CW_OP_REPLY);
    assert_int_equal(mail.head.status, 0);
    struct cw_cancel cancel = {.id = other};
    raw_post(&waiter, CW_OP_CANCEL, 0, &cancel, sizeof cancel);
    assert_int_equal(raw_reply(&waiter, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, other);
    assert_int_equal(mail.head.status, -ECANCELED);
    /* There already: answered at once. */
    id = raw_wait(&waiter, "later");
    assert_int_equal(raw_reply(&waiter, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, id);
    raw_wait(&waiter, "never"); /* ends with its client */
    raw_bye(&waiter);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_waiting) == 0));
    raw_slab_close(&slab);
    raw_bye(&client);
}

static void a_transit_holds_until_it_ends(void **state) {
    (void)state;
    struct raw_client client = client_open(), other = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    uint64_t token = raw_transit_begin(&client, slab.id, 0, gen);
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, gen);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0));
    raw_lease(&other, 7, slab.id, 0); /* opened elsewhere */
    raw_transit_end(&other, token);
    raw_transit_end(&other, token); /* twice is nothing */
    assert_int_equal(raw_ping(&other), 0);
    assert_false(raw_is_free(&slab, 0));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_transits), 0);
    raw_unlease(&other, 7);
    raw_drop(&other, slab.id, 0, gen);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    raw_slab_close(&slab);
    raw_bye(&other);
    raw_bye(&client);
}

static void an_end_that_overtakes_its_begin_is_remembered(void **state) {
    (void)state;
    struct raw_client client = client_open(), other = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    /* The BEGIN stands in its ring, behind more than the broker reads in one turn. */
    kill(broker.pid, SIGSTOP);
    for (int i = 0; i < 200; i++)
        assert_int_equal(raw_post(&client, CW_OP_PING, ++client.next_id, NULL, 0), 0);
    assert_int_equal(raw_transit_begin(&client, slab.id, 0, gen),
                     (uint64_t)client.session << 32 | 1);
    raw_transit_end_of(&other, (uint64_t)client.session << 32 | 1, slab.id, 0, gen);
    kill(broker.pid, SIGCONT);
    for (int i = 0; i < 200; i++)
        assert_int_equal(raw_reply(&client, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(raw_ping(&other), 0);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_transits), 0);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_transits_ended), 1);
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, gen);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    raw_slab_close(&slab);
    raw_bye(&other);
    raw_bye(&client);
}

static void a_transit_outlives_its_maker_and_ends_by_its_limit(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    struct victim victim = victim_start(VICTIM_TRANSITS, 0);
    assert_int_equal(raw_slab_open(&client, victim.slab, &slab), 0);
    victim_kill(&victim);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_died) == 1));
    assert_false(raw_is_free(&slab, 0));
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_transits_expired) == 1));
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    raw_slab_close(&slab);
    raw_bye(&client);
}

static void death_gives_back_within_100_ms(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    int64_t best_ns = INT64_MAX;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    /* A loaded machine may delay us; the broker itself must have been quick at least once. */
    for (int round = 0; round < 5; round++) {
        uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
        struct victim victim = victim_start(VICTIM_LEASES_OTHERS, slab.id);
        raw_unlease(&client, 0);
        raw_drop(&client, slab.id, 0, gen);
        assert_int_equal(raw_ping(&client), 0);
        assert_false(raw_is_free(&slab, 0)); /* the victim's lease holds it */
        int64_t begun_ns = cw_now_ns();
        kill(victim.pid, SIGKILL);
        assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
        int64_t took_ns = cw_now_ns() - begun_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
        waitpid(victim.pid, NULL, 0);
    }
    assert_in_range(best_ns, 0, 100000000);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_clients_died), 5);
    raw_slab_close(&slab);
    raw_bye(&client);
}

/* Killed after its slot was cleared and before it could tell: nobody reports that block. */
static void a_drop_that_was_never_told_is_found_at_death(void **state) {
    (void)state;
    struct raw_client client = client_open(), dier = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    raw_lease(&dier, 5, slab.id, 0);
    raw_unlease(&client, 0);
    uint64_t scans = raw_counter(&broker, CW_COUNTER_scans);
    raw_drop(&client, slab.id, 0, gen);
    /* It was looked at, and found held. */
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_scans) > scans));
    assert_int_equal(raw_ping(&client), 0);
    raw_unlease(&dier, 5); /* and no word */
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0));
    raw_bye(&dier);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    raw_slab_close(&slab);
    raw_bye(&client);
}

static void a_dead_makers_slab_is_adopted(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    struct victim victim = victim_start(VICTIM_NAMES, 0);
    struct cw_slab_request wish = {.device_kind = CW_DEVICE_HOST, .free_bytes = SLAB_BYTES - 8192};
    struct cw_slab_info info;
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    assert_int_equal(raw_slab_open(&client, victim.slab, &slab), 0);
    victim_kill(&victim);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_orphan_slabs) == 1));
    wish.free_bytes++; /* one more than is free in one piece */
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    wish.free_bytes--;
    wish.device_kind = CW_DEVICE_CUDA;
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    wish.device_kind = CW_DEVICE_HOST;
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), 0);
    memcpy(&info, mail.body, sizeof info);
    assert_int_equal(info.slab, victim.slab);
    assert_int_equal(info.owner_session, client.session);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_orphan_slabs) == 0));
    /* The name still holds the dead maker's array, in what is our slab now. */
    assert_false(raw_is_free(&slab, 0));
    assert_int_equal(raw_remove(&client, "orphan"), 0);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    assert_true(RAW_UNTIL(CW_LOAD(S1, &client.shared->reclaimed, acquire) == 1));
    wish = (struct cw_slab_request){.slab = victim.slab};
    raw_post(&client, CW_OP_SLAB_CLOSE, 0, &wish, sizeof wish);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    raw_slab_close(&slab);
    raw_bye(&client);
}

/* What is free in an orphan is read from its table once, and again when something came back. */
static void an_orphans_table_is_looked_at_once(void **state) {
    (void)state;
    struct raw_client maker = client_open(), client = client_open();
    struct raw_slab slab;
    struct cw_slab_request wish = {.device_kind = CW_DEVICE_HOST, .free_bytes = 8192};
    assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, 16, &slab), 0);
    uint64_t large = raw_carve(&maker, &slab, 0, 0, SLAB_BYTES - 8192);
    uint64_t small = raw_carve(&maker, &slab, 1, SLAB_BYTES - 8192, 4096);
    assert_int_equal(raw_put(&maker, slab.id, 0, large, 1, "large", 0), 0);
    assert_int_equal(raw_put(&maker, slab.id, 1, small, 1, "small", 0), 0);
    raw_bye(&maker);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_orphan_slabs) == 1));
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    uint64_t before = word(&slab, 0);
    CW_STORE(B7, &slab.table->blocks[0].word, 0, release); /* somebody writes into the table */
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), -ENOENT);
    CW_STORE(B7, &slab.table->blocks[0].word, before, release);
    assert_int_equal(raw_remove(&client, "large"), 0);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), 0);
    raw_slab_close(&slab);
    raw_bye(&client);
}

/* More tables than are looked at in a turn: the one that has room is found all the same. */
static void many_orphans_are_looked_at_in_turns(void **state) {
    (void)state;
    enum { ORPHANS = 40, BLOCKS = 8192 };
    struct raw_client maker = client_open(), client = client_open();
    struct raw_slab slabs[ORPHANS];
    struct cw_slab_request wish = {.device_kind = CW_DEVICE_HOST, .free_bytes = SLAB_BYTES / 2};
    struct cw_slab_info info;
    for (int i = 0; i < ORPHANS; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, BLOCKS, &slabs[i]), 0);
        uint64_t bytes = i == ORPHANS - 1 ? 4096 : SLAB_BYTES - 4096;
        uint64_t gen = raw_carve(&maker, &slabs[i], 0, 0, bytes);
        assert_int_equal(raw_put(&maker, slabs[i].id, 0, gen, 1, name, 0), 0);
    }
    raw_bye(&maker);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_orphan_slabs) == ORPHANS));
    assert_int_equal(raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), 0);
    memcpy(&info, mail.body, sizeof info);
    assert_int_equal(info.slab, slabs[ORPHANS - 1].id);
    for (int i = 0; i < ORPHANS; i++)
        raw_slab_close(&slabs[i]);
    raw_bye(&client);
}

static void a_socket_that_ends_while_the_process_lives_keeps_leases(void **state) {
    (void)state;
    struct raw_client client = client_open(), other = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    raw_lease(&other, 0, slab.id, 0);
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, gen);
    raw_close(&other); /* this very process goes on: its mappings may be in use */
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_clients), 2);
    raw_slab_close(&slab);
    raw_bye(&client);
    kill(broker.pid, SIGTERM); /* finish() waits for no client: end here */
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 0);
    raw_broker_remove(&broker);
    assert_int_equal(start(NULL), 0);
}

static void a_fork_doubles_leases_until_its_pipe_ends(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    int ends[2];
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(raw_exchange(&client, CW_OP_FORK, NULL, 0, ends, 1, &mail), 0);
    close(ends[0]);
    struct cw_block_ref ref = {.slab = slab.id, .block = 0, .gen = gen};
    struct cw_holders holders;
    assert_int_equal(raw_call(&client, CW_OP_HOLDERS, &ref, sizeof ref, &mail), 0);
    memcpy(&holders, mail.body, sizeof holders);
    assert_int_equal(holders.holders, 1);
    assert_int_equal(holders.references, 1);
    assert_int_equal(holders.owner_pid, getpid());
    assert_memory_equal(mail.body + sizeof holders, &(uint32_t){(uint32_t)getpid()}, 4);
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, gen);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0));
    close(ends[1]);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    raw_slab_close(&slab);
    raw_bye(&client);
}

static void many_names_and_deaths_leave_nothing(void **state) {
    (void)state;
    struct raw_client client = client_open();
    assert_int_equal(raw_ping(&client), 0);
    uint64_t fds = raw_gauge(&broker, CW_GAUGE_fds);
    for (int i = 0; i < 30; i++) {
        struct victim victim = victim_start((enum victim_kind)(i % 2), 0);
        victim_kill(&victim);
    }
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_died) == 30));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 1)); /* the last one's name */
    assert_int_equal(raw_remove(&client, "orphan"), 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_fds) == fds));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_bytes), 0);
    raw_bye(&client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slabs_are_kept_and_handed_out, start, finish),
        cmocka_unit_test_setup_teardown(names_hold_their_arrays, start, finish),
        cmocka_unit_test_setup_teardown(a_wait_is_answered_when_the_name_comes, start, finish),
        cmocka_unit_test_setup_teardown(a_transit_holds_until_it_ends, start, finish),
        cmocka_unit_test_setup_teardown(an_end_that_overtakes_its_begin_is_remembered, start,
                                        finish),
        cmocka_unit_test_setup_teardown(a_transit_outlives_its_maker_and_ends_by_its_limit, start,
                                        finish),
        cmocka_unit_test_setup_teardown(death_gives_back_within_100_ms, start, finish),
        cmocka_unit_test_setup_teardown(a_drop_that_was_never_told_is_found_at_death, start,
                                        finish),
        cmocka_unit_test_setup_teardown(a_dead_makers_slab_is_adopted, start, finish),
        cmocka_unit_test_setup_teardown(an_orphans_table_is_looked_at_once, start, finish),
        cmocka_unit_test_setup_teardown(many_orphans_are_looked_at_in_turns, start, finish),
        cmocka_unit_test_setup_teardown(a_socket_that_ends_while_the_process_lives_keeps_leases,
                                        start, finish),
        cmocka_unit_test_setup_teardown(a_fork_doubles_leases_until_its_pipe_ends, start, finish),
        cmocka_unit_test_setup_teardown(many_names_and_deaths_leave_nothing, start, finish),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
