/*
 * Killed in the midst of a load: SIGKILL after instructions that are spread over all of cw_load,
 * from the opening of the file to the end of the claim, while a thread of the loader reads. After
 * each kill the name means nothing or the whole tree; another process gets the tree at once, since
 * the claim is over; and when the name is removed all memory is back within a second.
 *
 * Some dozens of instructions, the first one by chance; 1,000 with CABLEWAY_SOAK set (make soak).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "tests/crash/support/step.h"
#include "tests/crash/support/world.h"
#include "tests/support.h"

#define LOOKS      1000 /* about 1 ms each: a second */
#define KILLS      (getenv("CABLEWAY_SOAK") ? 1000 : 40)
#define TENSORS    8
#define BYTES      5000
#define TIMEOUT_NS 20000000000ll

static struct world world;
static char file[160];

#define DONE(call)                                                                                 \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != 0) {                                                                          \
            printf("# %s: %d: %s\n", #call, code_, cw_error());                                    \
            fflush(stdout);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

static uint8_t value_at(int tensor, int byte) {
    return (uint8_t)(tensor * 31 + byte);
}

static void write_file(void) {
    char header[TENSORS * 100] = "{";
    size_t used = 1;
    for (int i = 0; i < TENSORS; i++)
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%"
                                 "d]}",
                                 i ? "," : "", i, BYTES, i * BYTES, (i + 1) * BYTES);
    used += (size_t)snprintf(header + used, sizeof header - used, "}");
    snprintf(file, sizeof file, "%s/m.safetensors", world.folder);
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    for (int i = 0; i < 8; i++)
        fputc((int)(used >> (8 * i)) & 255, out);
    fputs(header, out);
    for (int i = 0; i < TENSORS; i++)
        for (int byte = 0; byte < BYTES; byte++)
            fputc(value_at(i, byte), out);
    assert_int_equal(fclose(out), 0);
}

/* ---- what a child does ---- */

static cw_client *own;

static int load(cw_client *client, cw_tree **tree, int *loaded) {
    cw_load *begun;
    int code = cw_load_begin(client, "m", file, NULL, 0, &begun);
    if (code)
        return code;
    do
        code = cw_load_wait(begun, TIMEOUT_NS, tree, loaded);
    while (code == -EINTR);
    cw_load_end(begun);
    return code;
}

static void child(void *unused) {
    static const int64_t size = BYTES;
    cw_layout layout = world_bytes(&size);
    cw_array *warm; /* its slab is there: the deaths of who makes slabs are those of arrays */
    cw_tree *tree;
    (void)unused;
    DONE(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &own));
    DONE(cw_array_new(own, "cpu", &layout, 0, &warm));
    cw_array_close(warm);
    step_ready();
    DONE(load(own, &tree, NULL));
    cw_tree_close(tree);
    step_done();
}

/* ---- after a kill ---- */

static void check_whole(cw_client *client, const cw_tree *tree) {
    cw_tree_info info;
    cw_tree_look_at(tree, &info);
    assert_int_equal(info.leaves, TENSORS);
    for (uint32_t i = 0; i < info.leaves; i++) {
        cw_leaf leaf = {.path = NULL};
        cw_array *part = NULL;
        uint64_t hash = 0;
        assert_int_equal(cw_tree_leaf(tree, i, &leaf), 0);
        assert_int_equal(cw_tree_part(tree, client, leaf.part, &part), 0);
        assert_int_equal(cw_array_hash(part, leaf.offset_bytes, leaf.size_bytes, &hash), 0);
        assert_true(leaf.flags & CW_LEAF_HASHED && hash == leaf.hash);
        const uint8_t *bytes = (const uint8_t *)cw_array_data(part) + leaf.offset_bytes;
        for (int byte = 0; byte < BYTES; byte++)
            assert_int_equal(bytes[byte], value_at((int)i, byte));
        cw_array_close(part);
    }
}

static pid_t begin(void) {
    pid_t pid = step_fork(child, NULL);
    if (pid < 0) {
        print_message("skipped: ptrace is not allowed here\n");
        skip();
    }
    return pid;
}

/* Somebody else gets the tree, whole. Whether he had to load it. Nothing is left. */
static int end(void) {
    cw_client *client;
    cw_tree *tree;
    int loaded;
    assert_int_equal(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client), 0);
    if (load(client, &tree, &loaded) != 0)
        fail_msg("nobody could load: %s", cw_error());
    check_whole(client, tree);
    cw_tree_close(tree);
    assert_int_equal(cw_remove(client, "m"), 0);
    cw_client_unref(client);
    assert_true(world_holds_nothing(&world, LOOKS));
    return loaded;
}

static void at_many_instructions(void **state) {
    (void)state;
    struct step_path path;
    uint64_t absent = 0, whole = 0;
    pid_t pid = begin();
    assert_int_equal(step_trace(pid, &path), STEP_OVER);
    step_kill(pid);
    assert_int_equal(end(), 0);
    struct chance chance = chance_init(1);
    const uint64_t kills = (uint64_t)KILLS, stride = path.count / kills + 1;
    for (uint64_t n = chance_below(&chance, stride); n < path.count + stride; n += stride) {
        pid = begin();
        enum step_end how = step_to(pid, &path, n);
        if (how != STEP_TRAPPED) /* by its reading thread */
            step_kill(pid);
        assert_int_not_equal(how, STEP_BROKEN);
        *(end() ? &absent : &whole) += 1;
    }
    print_message("# %d instructions, %d kills: %d times there was nothing, %d times the tree\n",
                  (int)path.count, (int)(absent + whole), (int)absent, (int)whole);
    assert_true(absent > 0 && whole > 0);
    step_path_deinit(&path);
}

static int set_up(void **state) {
    (void)state;
    world_start(&world);
    write_file();
    step_pin();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    unlink(file);
    world_stop(&world);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"a_loader_killed_leaves_nothing_or_the_whole_tree_and_the_next_one_takes_over",
         at_many_instructions, NULL, NULL, NULL},
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
