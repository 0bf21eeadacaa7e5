/*
 * Names with garbage: whoever may put a name may describe its array by anything. That name is then
 * of no use, but it is seen, and no other is hidden.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "ipc/base/meta.h"
#include "tests/unit/ipc/client_support.h"
#include "tests/unit/raw_client.h"

struct seen {
    unsigned count, unreadable;
    char names[600][16];
    uint32_t holders[600];
};

static int see(void *context, const cw_name_info *info) {
    struct seen *seen = context;
    assert_true(seen->count < 600);
    strcpy(seen->names[seen->count], info->name);
    seen->holders[seen->count++] = info->holders;
    seen->unreadable += !*info->dtype;
    assert_string_equal(info->device, "cpu");
    assert_true(*info->dtype || info->ndim == 0);
    return 0;
}

static struct raw_broker broker;
static struct raw_client raw;
static struct raw_slab slab;
static uint64_t gen;

static int start(void **state) {
    (void)state;
    if (!raw_broker_start(&broker, NULL, NULL) || raw_connect(&broker, &raw) != 0 ||
        raw_slab_add(&raw, 1 << 20, 64, &slab) != 0)
        return -1;
    gen = raw_carve(&raw, &slab, 0, 0, 4096);
    setenv("CABLEWAY_DIR", broker.folder, 1);
    return 0;
}

static int finish(void **state) {
    (void)state;
    raw_slab_close(&slab);
    raw_close(&raw);
    raw_broker_remove(&broker);
    return 0;
}

/* Each a layout that cannot be; the last one can. */
static uint32_t describe(unsigned which, void *meta) {
    static struct cw_shape shape;
    shape = (struct cw_shape){
        .ndim = 2, .itemsize = 8, .dtype_bytes = 3, .shape = {3, 2}, .strides = {16, 8}};
    strcpy(shape.dtype, "<f8");
    switch (which) {
    case 0:
        shape.shape[0] = -1;
        break;
    case 1: /* behind an axis without elements */
        shape.shape[0] = 0;
        shape.shape[1] = -1;
        break;
    case 2: /* more than the array has */
        shape.strides[0] = 1 << 20;
        break;
    case 3:
        shape.strides[0] = INT64_MAX;
        break;
    case 4: /* what a terminal, or a list with tabs, takes for something else */
        shape.dtype[1] = '\t';
        break;
    case 5:
        shape.dtype[1] = 0;
        break;
    default:
        break;
    }
    return cw_meta_encode(&shape, meta);
}

static void what_is_no_layout_is_refused(void **state) {
    (void)state;
    static uint8_t meta[CW_META_BYTES_MAX];
    static struct cw_shape shape;
    for (unsigned which = 0; which < 6; which++)
        assert_int_equal(cw_meta_decode(meta, describe(which, meta), 4096, &shape), -EPROTO);
    assert_int_equal(cw_meta_decode(meta, describe(6, meta), 4096, &shape), 0);
}

static void a_name_with_garbage_is_seen_and_hides_no_other(void **state) {
    (void)state;
    static uint8_t meta[CW_META_BYTES_MAX];
    static struct seen seen;
    char name[32];
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 12, 7);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "good/%03d", i);
        OK(cw_array_put(array, name, 0, NULL, 0));
    }
    for (unsigned which = 0; which < 6; which++) {
        snprintf(name, sizeof name, "bad/%u", which);
        assert_int_equal(
            raw_put_meta(&raw, slab.id, 0, gen, 4096, name, 0, meta, describe(which, meta)), 0);
    }
    assert_int_equal(raw_put(&raw, slab.id, 0, gen, 4096, "bad/6", 0), 0);
    assert_int_equal(raw_put_meta(&raw, slab.id, 0, gen, 4096, "bad/7", 0, "", 0), 0);
    OK(cw_names_stat(client, "", see, &seen));
    assert_int_equal(seen.count, 508);
    assert_int_equal(seen.unreadable, 8);
    for (unsigned i = 0; i < seen.count; i++) {
        if (i)
            assert_true(strcmp(seen.names[i - 1], seen.names[i]) < 0);
        assert_int_equal(seen.holders[i], 1); /* two names, or 500, of one array */
    }
    static cw_name_info info;
    assert_int_equal(cw_name_stat(client, "bad/0", &info), -EPROTO);
    cw_array *none;
    assert_int_equal(cw_get(client, "bad/0", 0, &none), -EPROTO);
    OK(cw_remove(client, "bad/0"));
    cw_array_close(array);
    cw_client_unref(client);
}

/* What the command beside the broker prints, which ends well. */
static void command(const char *arguments, char *out, size_t out_bytes) {
    char line[PATH_MAX + 64];
    const char *path = getenv("CABLEWAY_BROKER");
    snprintf(line, sizeof line, "%.*s %s", (int)(strlen(path) - 1), path, arguments);
    FILE *said = popen(line, "r");
    assert_non_null(said);
    out[fread(out, 1, out_bytes - 1, said)] = 0;
    assert_int_equal(pclose(said), 0);
}

static void the_command_lists_names_beside_one_with_garbage(void **state) {
    (void)state;
    char said[8192];
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 12, 7);
    OK(cw_array_put(array, "good", 0, NULL, 0));
    assert_int_equal(raw_put(&raw, slab.id, 0, gen, 4096, "bad", 0), 0);
    command("ls", said, sizeof said);
    assert_non_null(strstr(said, "good  cpu"));
    assert_non_null(strstr(said, "bad   cpu     ?      ?"));
    command("ls --all", said, sizeof said);
    assert_non_null(strstr(said, "good  cpu"));
    command("ls --json", said, sizeof said);
    assert_non_null(strstr(said, "\"dtype\": null"));
    assert_non_null(strstr(said, "\"shape\": null"));
    assert_non_null(strstr(said, "\"|u1\""));
    command("rm bad", said, sizeof said);
    cw_array_close(array);
    cw_client_unref(client);
}

static int stop_at_third(void *context, const cw_name_info *info) {
    (void)info;
    return ++*(int *)context == 3 ? 42 : 0;
}

static void who_is_told_of_names_may_end_it(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 12, 7);
    char name[32];
    int count = 0;
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(cw_array_put(array, name, 0, NULL, 0));
    }
    assert_int_equal(cw_names_stat(client, "n", stop_at_third, &count), 42);
    assert_int_equal(count, 3);
    count = 0;
    OK(cw_names_stat(client, "nothing", stop_at_third, &count));
    assert_int_equal(count, 0);
    assert_int_equal(cw_names_stat(client, "n", NULL, NULL), -EINVAL);
    cw_array_close(array);
    cw_client_unref(client);
}

static void a_question_of_wrong_form_drops_its_client(void **state) {
    (void)state;
    struct {
        struct cw_blocks head;
        struct cw_block_name blocks[CW_BLOCKS_ASKED + 1];
    } question = {.head = {.count = CW_BLOCKS_ASKED + 1}};
    struct raw_client liar;
    struct raw_mail mail;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(raw_connect(&broker, &liar), 0);
        question.head.count = i == 0 ? CW_BLOCKS_ASKED + 1 : i == 1 ? 2 : 1;
        question.head.reserved = i == 2;
        uint32_t bytes = (uint32_t)(sizeof question.head +
                                    (i == 0 ? CW_BLOCKS_ASKED + 1 : 1) * sizeof *question.blocks);
        assert_int_equal(raw_call(&liar, CW_OP_HOLDERS_OF, &question, bytes, &mail), -ECONNRESET);
        raw_close(&liar);
    }
    /* Blocks that are none are answered: they are gone. */
    question.head = (struct cw_blocks){.count = 3};
    question.blocks[0] = (struct cw_block_name){.slab = slab.id, .block = 0, .gen = gen};
    question.blocks[1] = (struct cw_block_name){.slab = slab.id, .block = 64, .gen = 0};
    question.blocks[2] = (struct cw_block_name){.slab = slab.id + 7, .block = 0, .gen = gen};
    assert_int_equal(raw_call(&raw, CW_OP_HOLDERS_OF, &question,
                              sizeof question.head + 3 * sizeof *question.blocks, &mail),
                     0);
    struct cw_block_holders found[3];
    assert_int_equal(mail.body_bytes, sizeof found);
    memcpy(found, mail.body, sizeof found);
    assert_int_equal(found[0].device_kind, CW_DEVICE_HOST);
    assert_int_equal(found[0].holders, 1);
    assert_true(found[1].device_kind == 0 && found[2].device_kind == 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

/* For other tests: gives an array that is described by garbage this name, at the user's broker. */
static int put_garbage(const char *name) {
    if (cw_address_find(NULL, &broker.address) != 0 || raw_connect(&broker, &raw) != 0 ||
        raw_slab_add(&raw, 1 << 20, 64, &slab) != 0)
        return 1;
    gen = raw_carve(&raw, &slab, 0, 0, 4096);
    int code = raw_put(&raw, slab.id, 0, gen, 100, name, CW_PUT_KEEP | CW_PUT_REPLACE);
    raw_bye(&raw);
    return code != 0;
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "put") == 0)
        return put_garbage(arguments[2]);
    set_broker_path();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_layout_is_refused),
        TEST(a_name_with_garbage_is_seen_and_hides_no_other),
        TEST(the_command_lists_names_beside_one_with_garbage),
        TEST(who_is_told_of_names_may_end_it),
        TEST(a_question_of_wrong_form_drops_its_client),
    };
    return cmocka_run_group_tests_name("names with garbage", tests, NULL, NULL);
}
