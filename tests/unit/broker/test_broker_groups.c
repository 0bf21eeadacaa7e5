/*
 * Groups and versions: the parts of a tree live exactly as long as its index, whoever dies, and a
 * name changes from one version to the next only if it means the one that was said.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "tests/unit/raw_client.h"

#define PARTS 3

static struct raw_broker broker;
static struct raw_mail mail;

struct maker {
    struct raw_client client;
    struct raw_slab slab;
    uint64_t gens[PARTS + 1]; /* of the index, block 0, and of the parts */
};

static void maker_open(struct maker *maker) {
    assert_int_equal(raw_connect(&broker, &maker->client), 0);
    assert_int_equal(raw_slab_add(&maker->client, 1 << 20, 16, &maker->slab), 0);
}

static void carve(struct maker *maker) {
    for (uint32_t i = 0; i <= PARTS; i++)
        maker->gens[i] = raw_carve(&maker->client, &maker->slab, i, i * 4096, 4096);
}

static void leave_block(struct maker *maker, uint32_t block) {
    raw_unlease(&maker->client, block);
    raw_drop(&maker->client, maker->slab.id, block, maker->gens[block]);
}

static struct cw_block_name name_of(const struct maker *maker, uint32_t block) {
    return (struct cw_block_name){
        .slab = maker->slab.id, .block = block, .gen = maker->gens[block]};
}

static int group(struct raw_client *client, struct cw_block_name anchor,
                 const struct cw_block_name *members, uint32_t count) {
    uint8_t body[CW_MESSAGE_MAX];
    struct cw_block_group head = {.anchor = anchor, .count = count};
    memcpy(body, &head, sizeof head);
    memcpy(body + sizeof head, members, count * sizeof *members);
    return raw_call(client, CW_OP_GROUP, body, (uint32_t)(sizeof head + count * sizeof *members),
                    &mail);
}

static int group_all(struct maker *maker) {
    struct cw_block_name members[PARTS];
    for (uint32_t i = 0; i < PARTS; i++)
        members[i] = name_of(maker, i + 1);
    return group(&maker->client, name_of(maker, 0), members, PARTS);
}

static int put_tree(struct maker *maker, const char *name, uint64_t if_version, uint64_t *version) {
    uint8_t body[sizeof(struct cw_put_tree) + CW_KEY_MAX + 4];
    size_t length = strlen(name);
    struct cw_put_tree head = {.if_version = if_version,
                               .put = {.slab = maker->slab.id,
                                       .gen = maker->gens[0],
                                       .size_bytes = 64,
                                       .flags = CW_PUT_REPLACE,
                                       .key_bytes = (uint16_t)(length + 1),
                                       .meta_bytes = 4}};
    memcpy(body, &head, sizeof head);
    body[sizeof head] = 0;
    memcpy(body + sizeof head + 1, name, length);
    memcpy(body + sizeof head + 1 + length, "meta", 4);
    int code = raw_call(&maker->client, CW_OP_PUT_TREE, body,
                        (uint32_t)(sizeof head + 1 + length + 4), &mail);
    if (code == 0) {
        struct cw_version found;
        assert_int_equal(mail.body_bytes, sizeof found);
        memcpy(&found, mail.body, sizeof found);
        *version = found.version;
    }
    return code;
}

static int find_version(struct raw_client *client, const char *name, uint64_t version) {
    uint8_t body[sizeof(struct cw_find_version) + CW_KEY_MAX];
    memcpy(body, &version, sizeof version);
    uint32_t length = raw_key(name, body + sizeof version);
    return raw_call(client, CW_OP_FIND_VERSION, body, (uint32_t)sizeof version + length, &mail);
}

/* The number, or 0: none. */
static uint64_t next_version(struct raw_client *client, const char *name, uint32_t begins,
                             uint64_t after) {
    const struct cw_next_version head = {.after = after, .begins = begins};
    uint8_t body[sizeof head + CW_KEY_MAX];
    struct cw_version_found found;
    memcpy(body, &head, sizeof head);
    uint32_t length = raw_key(name, body + offsetof(struct cw_next_version, key));
    int code = raw_call(client, CW_OP_NEXT_VERSION, body,
                        (uint32_t)offsetof(struct cw_next_version, key) + length, &mail);
    if (code == -ENOENT)
        return 0;
    assert_int_equal(code, 0);
    memcpy(&found, mail.body, sizeof found);
    assert_true(found.created_ns > 0);
    return found.at.version;
}

static uint64_t wait_after(struct raw_client *client, const char *name, uint64_t after) {
    uint8_t body[sizeof(struct cw_wait_after) + CW_KEY_MAX];
    memcpy(body, &after, sizeof after);
    uint32_t length = raw_key(name, body + sizeof after);
    uint64_t id = ++client->next_id;
    assert_int_equal(raw_post(client, CW_OP_WAIT_AFTER, id, body, (uint32_t)sizeof after + length),
                     0);
    return id;
}

static bool is_free(const struct maker *maker, uint32_t block) {
    return cw_block_state(atomic_load(&maker->slab.table->blocks[block].word)) == CW_BLOCK_FREE;
}

static bool all_are(const struct maker *maker, bool free) {
    for (uint32_t i = 0; i <= PARTS; i++)
        if (is_free(maker, i) != free)
            return false;
    return true;
}

static uint32_t references(struct raw_client *client, const struct maker *maker, uint32_t block) {
    struct cw_block_ref ref = {.slab = maker->slab.id, .block = block, .gen = maker->gens[block]};
    struct cw_holders holders;
    if (raw_call(client, CW_OP_HOLDERS, &ref, sizeof ref, &mail) != 0)
        return 0;
    memcpy(&holders, mail.body, sizeof holders);
    return holders.references;
}

static void parts_live_as_long_as_their_index_and_no_longer(void **state) {
    (void)state;
    struct maker maker;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&maker);
    for (int round = 0; round < 3; round++) { /* the same blocks, of another generation */
        carve(&maker);
        assert_int_equal(group_all(&maker), 0);
        for (uint32_t i = 1; i <= PARTS; i++)
            leave_block(&maker, i);
        assert_int_equal(raw_ping(&maker.client), 0);
        assert_true(all_are(&maker, false));
        assert_int_equal(references(&maker.client, &maker, 1), 1);
        leave_block(&maker, 0);
        assert_true(RAW_UNTIL(all_are(&maker, true)));
    }
    raw_slab_close(&maker.slab);
    raw_bye(&maker.client);
    raw_broker_remove(&broker);
}

static void who_holds_the_index_alone_keeps_the_parts_of_a_dead_maker(void **state) {
    (void)state;
    struct maker maker;
    struct raw_client reader;
    struct raw_slab seen;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&maker);
    carve(&maker);
    assert_int_equal(group_all(&maker), 0);
    assert_int_equal(raw_connect(&broker, &reader), 0);
    assert_int_equal(raw_slab_open(&reader, maker.slab.id, &seen), 0);
    raw_lease(&reader, 0, maker.slab.id, 0);
    raw_bye(&maker.client); /* as its death: its leases end now */
    assert_int_equal(raw_ping(&reader), 0);
    for (uint32_t i = 1; i <= PARTS; i++)
        assert_int_equal(references(&reader, &maker, i), 1);
    assert_true(all_are(&maker, false));
    raw_unlease(&reader, 0);
    raw_drop(&reader, maker.slab.id, 0, maker.gens[0]);
    assert_true(RAW_UNTIL(all_are(&maker, true)));
    /* The slab was nobody's: it is closed. */
    assert_true(RAW_UNTIL(raw_ping(&reader) == 0 && raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    raw_slab_close(&seen);
    raw_slab_close(&maker.slab);
    raw_bye(&reader);
    raw_broker_remove(&broker);
}

/* Members in the anchor's own slab keep it. The maker damages the anchor's word, or a reader that
 * outlives it. */
static void a_damaged_index_keeps_no_part_of_the_dead(void **state) {
    (void)state;
    for (int later = 0; later < 2; later++) {
        struct maker maker;
        struct raw_client reader, watcher;
        struct raw_slab seen;
        assert_true(raw_broker_start(&broker, NULL, NULL));
        maker_open(&maker);
        carve(&maker);
        assert_int_equal(group_all(&maker), 0);
        assert_int_equal(raw_connect(&broker, &watcher), 0);
        assert_int_equal(raw_connect(&broker, &reader), 0);
        assert_int_equal(raw_slab_open(&reader, maker.slab.id, &seen), 0);
        raw_lease(&reader, 0, maker.slab.id, 0);
        if (!later)
            atomic_store(&maker.slab.table->blocks[0].word, UINT64_MAX);
        raw_bye(&maker.client);
        assert_true(RAW_UNTIL(raw_ping(&watcher) == 0 &&
                              raw_gauge(&broker, CW_GAUGE_slabs) == (later ? 1 : 0)));
        if (later)
            atomic_store(&seen.table->blocks[0].word, UINT64_MAX);
        raw_bye(&reader);
        assert_true(RAW_UNTIL(raw_ping(&watcher) == 0 && raw_gauge(&broker, CW_GAUGE_slabs) == 0));
        raw_slab_close(&seen);
        raw_slab_close(&maker.slab);
        raw_bye(&watcher);
        raw_broker_remove(&broker);
    }
}

static void a_group_is_whole_or_not_there(void **state) {
    (void)state;
    struct maker maker;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&maker);
    carve(&maker);
    struct cw_block_name members[PARTS] = {name_of(&maker, 1), name_of(&maker, 2),
                                           name_of(&maker, 3)};
    members[2].gen++;
    assert_int_equal(group(&maker.client, name_of(&maker, 0), members, PARTS), -ESTALE);
    assert_int_equal(references(&maker.client, &maker, 1), 0);
    members[2] = (struct cw_block_name){.slab = 999};
    assert_int_equal(group(&maker.client, name_of(&maker, 0), members, PARTS), -ESTALE);
    assert_int_equal(references(&maker.client, &maker, 1), 0);
    uint64_t version;
    assert_int_equal(put_tree(&maker, "m", CW_VERSION_ANY, &version), -EINVAL); /* no anchor */
    /* Piece by piece, it grows. */
    members[2] = name_of(&maker, 3);
    for (uint32_t i = 0; i < PARTS; i++)
        assert_int_equal(group(&maker.client, name_of(&maker, 0), &members[i], 1), 0);
    for (uint32_t i = 1; i <= PARTS; i++)
        assert_int_equal(references(&maker.client, &maker, i), 1);
    raw_slab_close(&maker.slab);
    raw_bye(&maker.client);
    raw_broker_remove(&broker);
}

static void no_group_keeps_itself_alive(void **state) {
    (void)state;
    struct maker maker;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&maker);
    carve(&maker);
    struct cw_block_name index = name_of(&maker, 0), part = name_of(&maker, 1);
    assert_int_equal(group(&maker.client, index, &index, 1), -EINVAL); /* its own member */
    assert_int_equal(group(&maker.client, index, &part, 1), 0);
    assert_int_equal(group(&maker.client, part, &index, 1), -EINVAL); /* a ring of two */
    struct cw_block_name other = name_of(&maker, 2);
    assert_int_equal(group(&maker.client, other, &index, 1), -EINVAL); /* a chain */
    for (uint32_t i = 0; i <= PARTS; i++)
        leave_block(&maker, i);
    assert_true(RAW_UNTIL(all_are(&maker, true)));
    raw_slab_close(&maker.slab);
    raw_bye(&maker.client);
    raw_broker_remove(&broker);
}

static void a_form_that_is_none_ends_the_client(void **state) {
    (void)state;
    struct maker maker;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&maker);
    carve(&maker);
    struct cw_block_group head = {.anchor = name_of(&maker, 0), .count = 2}; /* and none of them */
    assert_int_equal(raw_call(&maker.client, CW_OP_GROUP, &head, sizeof head, &mail), -ECONNRESET);
    assert_true(raw_dropped(&maker.client));
    raw_slab_close(&maker.slab);
    raw_close(&maker.client);
    raw_broker_remove(&broker);
}

static void a_name_changes_only_from_the_version_that_was_said(void **state) {
    (void)state;
    struct maker old, young;
    uint64_t first, second, third;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&old);
    maker_open(&young);
    carve(&old);
    carve(&young);
    assert_int_equal(group_all(&old), 0);
    assert_int_equal(group_all(&young), 0);
    assert_int_equal(put_tree(&old, "m", 7, &first), -ESTALE); /* it means nothing */
    assert_int_equal(put_tree(&old, "m", 0, &first), 0);
    assert_int_equal(put_tree(&young, "m", 0, &second), -EEXIST);
    assert_int_equal(put_tree(&young, "m", first + 1, &second), -ESTALE);
    assert_int_equal(put_tree(&young, "m", first, &second), 0);
    assert_true(second > first);
    assert_int_equal(put_tree(&old, "m", first, &third), -ESTALE);
    /* A name that was removed never gets an old number again. */
    assert_int_equal(raw_remove(&old.client, "m"), 0);
    assert_int_equal(put_tree(&old, "m", second, &third), -ESTALE);
    assert_int_equal(put_tree(&old, "m", 0, &third), 0);
    assert_true(third > second);
    raw_slab_close(&old.slab);
    raw_slab_close(&young.slab);
    raw_bye(&old.client);
    raw_bye(&young.client);
    raw_broker_remove(&broker);
}

static void an_old_version_is_found_as_long_as_somebody_has_it(void **state) {
    (void)state;
    struct maker old, young;
    uint64_t first, second;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&old);
    maker_open(&young);
    carve(&old);
    carve(&young);
    assert_int_equal(group_all(&old), 0);
    assert_int_equal(group_all(&young), 0);
    assert_int_equal(put_tree(&old, "m", CW_VERSION_ANY, &first), 0);
    assert_int_equal(put_tree(&young, "m", CW_VERSION_ANY, &second), 0);
    assert_int_equal(find_version(&young.client, "m", first), 0);
    assert_int_equal(find_version(&young.client, "m", second), 0);
    assert_int_equal(find_version(&young.client, "n", first), -ENOENT); /* another name's */
    assert_int_equal(find_version(&young.client, "m", second + 1), -ENOENT);
    assert_int_equal(next_version(&young.client, "m", 0, 0), first);
    assert_int_equal(next_version(&young.client, "", 1, first), second);
    assert_int_equal(next_version(&young.client, "m", 1, second), 0);
    assert_int_equal(next_version(&young.client, "", 0, 0), 0); /* that name alone, which is none */
    assert_int_equal(next_version(&young.client, "mm", 1, 0), 0);
    for (uint32_t i = 0; i <= PARTS; i++)
        leave_block(&old, i);
    assert_true(RAW_UNTIL(all_are(&old, true)));
    assert_int_equal(find_version(&young.client, "m", first), -ENOENT);
    assert_int_equal(find_version(&young.client, "m", second), 0);
    raw_slab_close(&old.slab);
    raw_slab_close(&young.slab);
    raw_bye(&old.client);
    raw_bye(&young.client);
    raw_broker_remove(&broker);
}

static void who_waits_for_a_later_version_is_told_of_that_alone(void **state) {
    (void)state;
    struct maker maker;
    struct raw_client waiter;
    uint64_t first, second;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    maker_open(&maker);
    carve(&maker);
    assert_int_equal(group_all(&maker), 0);
    assert_int_equal(raw_connect(&broker, &waiter), 0);
    assert_int_equal(put_tree(&maker, "m", CW_VERSION_ANY, &first), 0);
    uint64_t later = wait_after(&waiter, "m", first), far = wait_after(&waiter, "m", first + 1000);
    uint64_t there = wait_after(&waiter, "m", first - 1);
    assert_int_equal(raw_reply(&waiter, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, there);
    assert_int_equal(put_tree(&maker, "m", CW_VERSION_ANY, &second), 0);
    assert_int_equal(raw_reply(&waiter, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, later);
    assert_int_equal(mail.head.op, CW_OP_WAIT_AFTER | CW_OP_REPLY);
    struct cw_cancel cancel = {.id = far};
    assert_int_equal(raw_post(&waiter, CW_OP_CANCEL, 0, &cancel, sizeof cancel), 0);
    assert_int_equal(raw_reply(&waiter, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, far);
    assert_int_equal(mail.head.status, -ECANCELED);
    raw_slab_close(&maker.slab);
    raw_bye(&waiter);
    raw_bye(&maker.client);
    raw_broker_remove(&broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_live_as_long_as_their_index_and_no_longer),
        cmocka_unit_test(who_holds_the_index_alone_keeps_the_parts_of_a_dead_maker),
        cmocka_unit_test(a_damaged_index_keeps_no_part_of_the_dead),
        cmocka_unit_test(a_group_is_whole_or_not_there),
        cmocka_unit_test(no_group_keeps_itself_alive),
        cmocka_unit_test(a_form_that_is_none_ends_the_client),
        cmocka_unit_test(a_name_changes_only_from_the_version_that_was_said),
        cmocka_unit_test(an_old_version_is_found_as_long_as_somebody_has_it),
        cmocka_unit_test(who_waits_for_a_later_version_is_told_of_that_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
