/*
 * Jobs at the broker: copies for cableway-mover, which is played by this very program, started by
 * the broker as the mover is. What it does with a job stands in its environment.
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

static struct raw_mail mail;
static struct raw_broker broker;
static char self[PATH_MAX];

/* ---- the mover ---- */

static void touch(const char *path, const char *more) {
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", path, more);
    close(open(whole, O_WRONLY | O_CREAT, 0600));
}

static int make_and_die(struct raw_client *client, const char *go) {
    struct raw_slab slab;
    if (raw_slab_add(client, SLAB_BYTES, BLOCKS, &slab) != 0)
        return 1;
    raw_transit_begin(client, slab.id, 0, raw_carve(client, &slab, 0, 0, 4096));
    if (raw_ping(client) != 0)
        return 1; /* else the broker has read it */
    touch(go, "");
    raise(SIGKILL);
    return 1;
}

/* $ACT: "done" and "fail" answer, "die" dies with the job, "sleep" never asks, "leave" ends before
 * it asks, "hold" makes the file $GO.has, and answers when $GO is there; "lie" has itself dropped
 * with a job in hand and while it asks for another, ends when $GO is there, and is "done" then;
 * "make" makes a block, begins a transit for it, and dies before it has told of that, which makes
 * the file $GO: then it is "done". */
static int act_as_mover(const char *socket_path) {
    const char *act = getenv("ACT"), *go = getenv("GO");
    struct raw_broker at = {.pid = 0};
    struct raw_client client;
    struct cw_job job;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the tests kill their brokers */
    if (cw_address_find(socket_path, &at.address) != 0)
        return 1;
    if (strcmp(act, "leave") == 0)
        return 7;
    if (strcmp(act, "sleep") == 0)
        pause();
    if (raw_connect(&at, &client) != 0)
        return 1;
    while (raw_call(&client, CW_OP_MOVER_NEXT, NULL, 0, &mail) == 0) {
        struct {
            struct cw_job_end end;
            char text[16];
        } word = {.text = "no such luck"};
        if (mail.body_bytes != sizeof job)
            return 1;
        memcpy(&job, mail.body, sizeof job);
        if (strcmp(act, "die") == 0)
            return 1;
        if (strcmp(act, "lie") == 0 && access(go, F_OK) != 0) {
            const struct cw_job_end lie = {.job = job.job + 100};
            raw_post(&client, CW_OP_MOVER_NEXT, 78, NULL, 0);
            raw_post(&client, CW_OP_MOVER_DONE, 77, &lie, sizeof lie);
            while (access(go, F_OK) != 0)
                raw_pause();
            return 1;
        }
        if (strcmp(act, "make") == 0 && access(go, F_OK) != 0)
            return make_and_die(&client, go);
        bool holds = strcmp(act, "hold") == 0;
        if (holds)
            touch(go, ".has");
        while (holds && access(go, F_OK) != 0)
            raw_pause();
        bool fails = strcmp(act, "fail") == 0;
        word.end = (struct cw_job_end){
            .job = job.job, .status = fails ? -EINVAL : 0, .text_bytes = fails ? 12 : 0};
        if (raw_post(&client, CW_OP_MOVER_DONE, 77, &word,
                     (uint32_t)sizeof word.end + word.end.text_bytes) != 0)
            return 1;
    }
    return 0; /* the broker is gone */
}

/* ---- the client ---- */

struct scene {
    struct raw_client client;
    struct raw_slab slab;
    struct cw_copy copy;
};

static void begin(struct scene *s, const char *act, const char *more) {
    static char program[PATH_MAX + 32], what[64];
    const char *environment[] = {program, what, more, NULL};
    snprintf(program, sizeof program, "CABLEWAY_MOVER=%s", self);
    snprintf(what, sizeof what, "ACT=%s", act);
    assert_true(raw_broker_start(&broker, NULL, environment));
    assert_int_equal(raw_connect(&broker, &s->client), 0);
    assert_int_equal(raw_slab_add(&s->client, SLAB_BYTES, BLOCKS, &s->slab), 0);
    s->copy = (struct cw_copy){
        .source = {s->slab.id, 0, raw_carve(&s->client, &s->slab, 0, 0, 4096), 0},
        .target = {s->slab.id, 1, raw_carve(&s->client, &s->slab, 1, 4096, 4096), 0},
        .size_bytes = 4096,
    };
}

static void end(struct scene *s) {
    raw_bye(&s->client);
    raw_slab_close(&s->slab);
    raw_broker_remove(&broker);
}

static int copy(struct scene *s) {
    return raw_call(&s->client, CW_OP_COPY, &s->copy, sizeof s->copy, &mail);
}

/* A look alone: cw_block_check() is a taker's, and would rescue what the broker is about to free.
 */
static bool lives(const struct scene *s, uint32_t block, uint64_t gen) {
    uint64_t word = CW_LOAD(B13, &s->slab.table->blocks[block].word, acquire);
    return cw_block_gen(word) == gen && cw_block_state(word) != CW_BLOCK_FREE;
}

static void a_job_is_answered_as_the_mover_says(void **state) {
    (void)state;
    struct scene s;
    begin(&s, "done", NULL);
    for (int i = 0; i < 100; i++)
        assert_int_equal(copy(&s), 0);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_mover_starts), 1);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_jobs_done) == 100));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_jobs) == 0));
    end(&s);
    begin(&s, "fail", NULL);
    assert_int_equal(copy(&s), -EINVAL);
    assert_string_equal(s.client.sentence, "no such luck");
    end(&s);
}

static void blocks_that_are_gone_are_no_job(void **state) {
    (void)state;
    struct scene s;
    begin(&s, "done", NULL);
    for (int i = 0; i < 2; i++) {
        struct cw_block_range *place = i ? &s.copy.target : &s.copy.source, right = *place;
        place->slab = 999;
        assert_int_equal(copy(&s), -ESTALE);
        *place = right;
        place->gen++;
        assert_int_equal(copy(&s), -ESTALE);
        *place = right;
        place->block = BLOCKS;
        assert_int_equal(copy(&s), -ESTALE);
        *place = right;
    }
    assert_int_equal(raw_counter(&broker, CW_COUNTER_mover_starts), 0);
    assert_int_equal(copy(&s), 0);
    end(&s);
}

/* Our leases end: the block comes back unless the broker holds it. */
static void let_go(struct scene *s) {
    for (uint32_t block = 0; block < 2; block++) {
        raw_unlease(&s->client, block);
        raw_drop(&s->client, s->slab.id, block, s->copy.source.gen);
    }
    assert_int_equal(raw_ping(&s->client), 0);
}

static void a_waiting_job_holds_its_blocks_and_can_be_cancelled(void **state) {
    (void)state;
    struct scene s;
    struct cw_cancel cancel = {.id = 4242};
    begin(&s, "sleep", "CABLEWAY_MAX_CLIENT_JOBS=1");
    assert_int_equal(raw_post(&s.client, CW_OP_COPY, 4242, &s.copy, sizeof s.copy), 0);
    let_go(&s);
    assert_true(lives(&s, 0, s.copy.source.gen) && lives(&s, 1, s.copy.target.gen));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_jobs), 1);
    assert_int_equal(copy(&s), -EDQUOT);
    assert_non_null(strstr(s.client.sentence, "max_client_jobs allows 1"));
    assert_int_equal(raw_post(&s.client, CW_OP_CANCEL, 4243, &cancel, sizeof cancel), 0);
    assert_int_equal(raw_reply(&s.client, &mail, RAW_TIMEOUT_MS), 1);
    assert_true(mail.head.id == 4242 && mail.head.status == -ECANCELED);
    assert_true(RAW_UNTIL(!lives(&s, 0, s.copy.source.gen) && !lives(&s, 1, s.copy.target.gen)));
    end(&s);
}

static void a_job_of_the_dead_holds_its_blocks_while_the_mover_has_it(void **state) {
    (void)state;
    struct scene s;
    char go[64], has[80], setting[80];
    struct raw_client other;
    snprintf(go, sizeof go, "/tmp/cableway-go-%d", (int)getpid());
    snprintf(has, sizeof has, "%s.has", go);
    snprintf(setting, sizeof setting, "GO=%s", go);
    begin(&s, "hold", setting);
    assert_int_equal(raw_connect(&broker, &other), 0);
    assert_int_equal(raw_post(&s.client, CW_OP_COPY, 4242, &s.copy, sizeof s.copy), 0);
    assert_true(RAW_UNTIL(access(has, F_OK) == 0));
    raw_bye(&s.client);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 2));
    assert_int_equal(raw_ping(&other), 0);
    assert_true(lives(&s, 0, s.copy.source.gen) && lives(&s, 1, s.copy.target.gen));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_jobs), 1);
    touch(go, "");
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_jobs) == 0));
    assert_true(RAW_UNTIL(!lives(&s, 0, s.copy.source.gen) && !lives(&s, 1, s.copy.target.gen)));
    unlink(go);
    unlink(has);
    raw_bye(&other);
    raw_slab_close(&s.slab);
    raw_broker_remove(&broker);
}

static void a_mover_that_was_dropped_gets_no_more_jobs(void **state) {
    (void)state;
    struct scene s;
    char go[64], setting[80];
    snprintf(go, sizeof go, "/tmp/cableway-lie-%d", (int)getpid());
    snprintf(setting, sizeof setting, "GO=%s", go);
    begin(&s, "lie", setting);
    assert_int_equal(raw_post(&s.client, CW_OP_COPY, 1, &s.copy, sizeof s.copy), 0);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_dropped) == 1));
    assert_int_equal(raw_post(&s.client, CW_OP_COPY, 2, &s.copy, sizeof s.copy), 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_jobs) == 2));
    touch(go, "");
    for (uint64_t i = 1; i <= 2; i++) {
        assert_int_equal(raw_reply(&s.client, &mail, RAW_TIMEOUT_MS), 1);
        assert_true(mail.head.id == i && mail.head.status == 0);
    }
    assert_int_equal(raw_counter(&broker, CW_COUNTER_jobs_repeated),
                     1); /* the second was not out */
    unlink(go);
    end(&s);
}

static void what_a_mover_made_and_did_not_tell_of_goes_with_it(void **state) {
    (void)state;
    struct scene s;
    char go[64], setting[80];
    snprintf(go, sizeof go, "/tmp/cableway-made-%d", (int)getpid());
    snprintf(setting, sizeof setting, "GO=%s", go);
    begin(&s, "make", setting);
    assert_int_equal(copy(&s), 0); /* by the next one */
    assert_int_equal(raw_counter(&broker, CW_COUNTER_transits_begun), 1);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_transits) == 0)); /* long before its limit */
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 1));
    unlink(go);
    end(&s);
}

static void movers_that_die_or_do_not_come_fail_the_job(void **state) {
    (void)state;
    struct scene s;
    begin(&s, "die", NULL);
    assert_int_equal(copy(&s), -ENODEV);
    assert_non_null(strstr(s.client.sentence, "died 16 times"));
    assert_int_equal(raw_counter(&broker, CW_COUNTER_jobs_repeated), 15);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_mover_starts), 16);
    end(&s);
    begin(&s, "leave", NULL);
    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(copy(&s), -ENODEV);
        assert_non_null(strstr(s.client.sentence, "ended 3 times"));
        assert_int_equal(raw_counter(&broker, CW_COUNTER_mover_starts), 3 * i);
    }
    end(&s);
}

static void the_role_is_the_started_process_alone(void **state) {
    (void)state;
    struct scene s;
    struct raw_client liar;
    const struct cw_job_end lie = {.job = 1};
    begin(&s, "sleep", NULL);
    assert_int_equal(raw_call(&s.client, CW_OP_MOVER_NEXT, NULL, 0, &mail), -EPERM);
    const struct cw_make make = {.size_bytes = 1};
    assert_int_equal(raw_call(&s.client, CW_OP_MAKE, &make, sizeof make, &mail), -EPERM);
    assert_int_equal(raw_post(&s.client, CW_OP_COPY, 4242, &s.copy, sizeof s.copy), 0);
    assert_int_equal(raw_call(&s.client, CW_OP_MOVER_NEXT, NULL, 0, &mail), -EPERM);
    assert_int_equal(raw_connect(&broker, &liar), 0);
    assert_int_equal(raw_post(&liar, CW_OP_MOVER_DONE, 1, &lie, sizeof lie), 0);
    assert_true(raw_dropped(&liar));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_jobs), 1);
    raw_close(&liar);
    end(&s);
}

static void links_are_kept_as_they_were_told(void **state) {
    (void)state;
    struct raw_client client;
    struct cw_link link = {.from_uuid = {1}, .to_uuid = {2}, .route = CW_LINK_STAGED, .rank = -1};
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_call(&client, CW_OP_LINK, &link, sizeof link, &mail), -ENOENT);
    for (uint64_t speed = 1; speed < 3; speed++) {
        link.bytes_per_second = speed;
        assert_int_equal(raw_post(&client, CW_OP_LINK_KEEP, 9, &link, sizeof link), 0);
        struct cw_link wish = {.from_uuid = {1}, .to_uuid = {2}};
        assert_int_equal(raw_call(&client, CW_OP_LINK, &wish, sizeof wish, &mail), 0);
        assert_memory_equal(mail.body, &link, sizeof link);
    }
    struct cw_link back = {.from_uuid = {2}, .to_uuid = {1}};
    assert_int_equal(raw_call(&client, CW_OP_LINK, &back, sizeof back, &mail), -ENOENT);
    link.route = 4;
    assert_int_equal(raw_post(&client, CW_OP_LINK_KEEP, 9, &link, sizeof link), 0);
    assert_true(raw_dropped(&client));
    raw_close(&client);
    raw_broker_remove(&broker);
}

int main(int argc, char **argv) {
    if (argc > 4 && strcmp(argv[1], "--socket") == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* as the mover: it ends with the broker */
        return getppid() == atoi(argv[4]) ? act_as_mover(argv[2]) : 1;
    }
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_answered_as_the_mover_says),
        cmocka_unit_test(blocks_that_are_gone_are_no_job),
        cmocka_unit_test(a_waiting_job_holds_its_blocks_and_can_be_cancelled),
        cmocka_unit_test(a_job_of_the_dead_holds_its_blocks_while_the_mover_has_it),
        cmocka_unit_test(a_mover_that_was_dropped_gets_no_more_jobs),
        cmocka_unit_test(what_a_mover_made_and_did_not_tell_of_goes_with_it),
        cmocka_unit_test(movers_that_die_or_do_not_come_fail_the_job),
        cmocka_unit_test(the_role_is_the_started_process_alone),
        cmocka_unit_test(links_are_kept_as_they_were_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
