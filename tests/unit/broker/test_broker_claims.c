/*
 * Claims: of all who would load what a name is to mean one does, and when it has done so, gave up
 * or died, the others hear of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/raw_client.h"

static struct raw_broker broker;
static struct raw_mail mail;

static uint32_t claim_body(uint64_t token, uint64_t after, const char *name, uint8_t *body) {
    struct cw_claim head = {.token = token, .after = after};
    uint8_t key[sizeof(struct cw_key) + CW_KEY_MAX];
    uint32_t length = raw_key(name, key);
    memcpy(&head.key, key, sizeof head.key);
    memcpy(body, &head, sizeof head);
    memcpy(body + sizeof head, key + sizeof head.key, length - sizeof head.key);
    return (uint32_t)(sizeof head - sizeof head.key) + length;
}

static uint64_t ask(struct raw_client *client, uint64_t token, uint64_t after, const char *name) {
    uint8_t body[sizeof(struct cw_claim) + CW_KEY_MAX];
    uint32_t length = claim_body(token, after, name, body);
    uint64_t id = ++client->next_id;
    assert_int_equal(raw_post(client, CW_OP_CLAIM, id, body, length), 0);
    return id;
}

/* The reply to the request with this id. */
static int answer_of(struct raw_client *client, uint64_t id) {
    assert_int_equal(raw_reply(client, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, id);
    return mail.head.status;
}

static int claim(struct raw_client *client, uint64_t token, const char *name) {
    return answer_of(client, ask(client, token, 0, name));
}

static void release(struct raw_client *client, uint64_t token, const char *name) {
    uint8_t body[sizeof(struct cw_claim) + CW_KEY_MAX];
    uint32_t length = claim_body(token, 0, name, body);
    assert_int_equal(raw_post(client, CW_OP_RELEASE, ++client->next_id, body, length), 0);
}

/* Nothing was answered: of two requests the later one's reply comes first. */
static void assert_waits(struct raw_client *client) {
    assert_int_equal(raw_call(client, CW_OP_PING, NULL, 0, &mail), 0);
}

static void open_both(struct raw_client *first, struct raw_client *second) {
    assert_int_equal(raw_connect(&broker, first), 0);
    assert_int_equal(raw_connect(&broker, second), 0);
}

static void test_one_has_it_and_the_others_hear_of_its_end(void **state) {
    struct raw_client first, second;
    (void)state;
    open_both(&first, &second);
    assert_int_equal(claim(&first, 1, "m"), 0);
    assert_int_equal(claim(&first, 2, "n"), 0); /* another name is another claim */
    uint64_t again = ask(&first, 3, 0, "m");    /* also of the same client */
    uint64_t waits = ask(&second, 1, 0, "m");
    assert_waits(&second);
    release(&second, 1, "m"); /* it is not its own */
    release(&first, 2, "m");  /* another token */
    assert_waits(&second);
    release(&first, 1, "m");
    assert_int_equal(answer_of(&first, again), -EAGAIN);
    assert_int_equal(answer_of(&second, waits), -EAGAIN);
    assert_int_equal(claim(&second, 4, "m"), 0);
    raw_bye(&first);
    raw_bye(&second);
}

static void test_a_put_answers_whose_claim_it_is_not(void **state) {
    struct raw_client first, second;
    struct raw_slab slab;
    (void)state;
    open_both(&first, &second);
    assert_int_equal(raw_slab_add(&first, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&first, &slab, 0, 0, 4096);
    assert_int_equal(claim(&first, 1, "put"), 0);
    uint64_t waits = ask(&second, 1, 0, "put");
    assert_waits(&second);
    assert_int_equal(raw_put(&first, slab.id, 0, gen, 64, "put", 0), 0);
    assert_int_equal(answer_of(&second, waits), -EAGAIN); /* though the claim stands */
    assert_int_equal(claim(&second, 2, "put"), -EAGAIN);  /* there is nothing to load */
    uint64_t later = ask(&second, 3, UINT64_MAX - 1, "put");
    assert_waits(&second); /* a version after that one is: the claim of the first stands */
    release(&first, 1, "put");
    assert_int_equal(answer_of(&second, later), -EAGAIN);
    assert_int_equal(answer_of(&second, ask(&second, 4, UINT64_MAX - 1, "put")), 0);
    raw_bye(&first);
    raw_bye(&second);
}

static void test_it_ends_with_the_session_and_with_a_breach(void **state) {
    struct raw_client first, second;
    (void)state;
    open_both(&first, &second);
    assert_int_equal(claim(&first, 1, "bye"), 0);
    uint64_t waits = ask(&second, 1, 0, "bye");
    assert_waits(&second);
    raw_bye(&first);
    assert_int_equal(answer_of(&second, waits), -EAGAIN);
    assert_int_equal(raw_connect(&broker, &first), 0);
    assert_int_equal(claim(&first, 1, "breach"), 0);
    waits = ask(&second, 2, 0, "breach");
    assert_waits(&second);
    assert_int_equal(raw_post(&first, CW_OP_CLAIM, ++first.next_id, "x", 1), 0);
    assert_int_equal(answer_of(&second, waits), -EAGAIN);
    raw_close(&first);
    raw_bye(&second);
}

/* A process that has the claim, and a child of its own that keeps the socket, until told. */
static _Noreturn void hold_in_a_child(int told, int tell) {
    struct raw_client client;
    char byte;
    if (raw_connect(&broker, &client) != 0)
        _exit(1);
    if (fork() == 0) {
        if (read(told, &byte, 1) < 0)
            _exit(1);
        _exit(0);
    }
    uint8_t body[sizeof(struct cw_claim) + CW_KEY_MAX];
    uint32_t length = claim_body(1, 0, "killed", body);
    int code = raw_call(&client, CW_OP_CLAIM, body, length, &mail);
    if (code != 0 || write(tell, "!", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static void test_it_ends_with_the_process_though_a_child_has_the_socket(void **state) {
    struct raw_client second;
    int told[2], tell[2];
    char byte;
    (void)state;
    assert_int_equal(raw_connect(&broker, &second), 0);
    assert_int_equal(pipe(told) + pipe(tell), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(told[1]);
        hold_in_a_child(told[0], tell[1]);
    }
    assert_int_equal(read(tell[0], &byte, 1), 1);
    uint64_t waits = ask(&second, 1, 0, "killed");
    assert_waits(&second);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(answer_of(&second, waits), -EAGAIN);
    assert_int_equal(claim(&second, 2, "killed"), 0);
    close(told[1]);
    raw_bye(&second);
}

static void test_the_form_is_checked(void **state) {
    struct raw_client client;
    uint8_t body[sizeof(struct cw_claim) + CW_KEY_MAX];
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint64_t dropped = raw_counter(&broker, CW_COUNTER_clients_dropped);
        assert_int_equal(raw_connect(&broker, &client), 0);
        uint32_t length = claim_body(1, 0, "form", body);
        assert_int_equal(
            raw_post(&client, i ? CW_OP_RELEASE : CW_OP_CLAIM, ++client.next_id, body, length - 1),
            0);
        assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_dropped) == dropped + 1));
        raw_close(&client);
    }
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(claim(&client, 1, "a//b"), -EINVAL); /* no name */
    raw_bye(&client);
}

static int start(void **state) {
    (void)state;
    return raw_broker_start(&broker, NULL, NULL) ? 0 : -1;
}

static int stop_broker(void **state) {
    (void)state;
    raw_broker_remove(&broker);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_has_it_and_the_others_hear_of_its_end),
        cmocka_unit_test(test_a_put_answers_whose_claim_it_is_not),
        cmocka_unit_test(test_it_ends_with_the_session_and_with_a_breach),
        cmocka_unit_test(test_it_ends_with_the_process_though_a_child_has_the_socket),
        cmocka_unit_test(test_the_form_is_checked),
    };
    return cmocka_run_group_tests(tests, start, stop_broker);
}
