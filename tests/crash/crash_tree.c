/*
 * Killed in the midst of a publication: SIGKILL after instructions that are spread over all of
 * cw_tree_put(), from the first array to the closing of what was published, and over a reader's
 * way, and over a swap at fixed addresses. After each kill the name means the version before or the
 * new one, whole, and never something between; and when the name is removed all memory is back
 * within a second.
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

#define LOOKS  1000 /* about 1 ms each: a second */
#define KILLS  (getenv("CABLEWAY_SOAK") ? 1000 : 30)
#define PARTS  2
#define SMALL  1024
#define APART  (1 << 16) /* in memory of its own: it can be swapped */
#define LEAVES 4

static struct world world;
static int64_t leaf_shape, part_shape; /* of this test */

#define DONE(call)                                                                                 \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != 0) {                                                                          \
            printf("# %s: %d: %s\n", #call, code_, cw_error());                                    \
            fflush(stdout);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- publishing and looking ---- */

static void publish(cw_client *client, int value) {
    static char paths[PARTS * LEAVES][16];
    cw_leaf leaves[PARTS * LEAVES];
    cw_array *parts[PARTS];
    cw_layout whole = world_bytes(&part_shape), one = world_bytes(&leaf_shape);
    for (int p = 0; p < PARTS; p++) {
        DONE(cw_array_new(client, "cpu", &whole, CW_APART, &parts[p]));
        memset(cw_array_data(parts[p]), value, (size_t)part_shape);
        for (int i = 0; i < LEAVES; i++) {
            int number = p * LEAVES + i;
            snprintf(paths[number], sizeof paths[number], "%d.%d", p, i);
            leaves[number] = (cw_leaf){.path = paths[number],
                                       .layout = one,
                                       .array = parts[p],
                                       .offset_bytes = (uint64_t)(i * leaf_shape)};
        }
    }
    DONE(cw_tree_put(client, "m", leaves, PARTS * LEAVES, &value, sizeof value, CW_REPLACE,
                     CW_ANY_VERSION, NULL));
    for (int p = 0; p < PARTS; p++)
        cw_array_close(parts[p]);
}

/* The value of the version that the name means; all of it has that value. */
static int look(cw_client *client) {
    cw_tree *tree;
    cw_tree_info info;
    int value;
    int code = cw_tree_get(client, "m", 0, &tree);
    if (code)
        fail_msg("the name means nothing: %s", cw_error());
    cw_tree_look_at(tree, &info);
    assert_int_equal(info.meta_bytes, sizeof value);
    memcpy(&value, info.meta, sizeof value);
    assert_int_equal(info.leaves, PARTS * LEAVES);
    for (uint32_t i = 0; i < info.leaves; i++) {
        cw_leaf leaf;
        cw_array *part;
        uint64_t hash;
        assert_int_equal(cw_tree_leaf(tree, i, &leaf), 0);
        assert_int_equal(cw_tree_part(tree, client, leaf.part, &part), 0);
        assert_int_equal(cw_array_hash(part, leaf.offset_bytes, leaf.size_bytes, &hash), 0);
        assert_true(hash == leaf.hash);
        assert_int_equal(*((uint8_t *)cw_array_data(part) + leaf.offset_bytes), value);
        cw_array_close(part);
    }
    cw_tree_close(tree);
    return value;
}

/* ---- what a child does ---- */

static cw_client *own;

static void reading(void) {
    cw_tree *tree;
    cw_array *part;
    if (cw_tree_get(own, "m", 0, &tree) != 0)
        return;
    if (cw_tree_part(tree, own, 1, &part) == 0)
        cw_array_close(part);
    cw_tree_close(tree);
}

static void connected(void) {
    DONE(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &own));
    cw_layout whole = world_bytes(&part_shape);
    cw_array *warm; /* its slab is there, and that of "m" mapped: the deaths of who makes and maps
                       slabs are those of arrays */
    DONE(cw_array_new(own, "cpu", &whole, 0, &warm));
    cw_array_close(warm);
    reading();
}

static void publishing(void) {
    publish(own, 2);
}

static cw_mount *mount;
static cw_array *mapped;

static void mounting(void) {
    cw_tree *tree;
    DONE(cw_tree_get(own, "m", 0, &tree));
    DONE(cw_mount_open(tree, own, &mount));
    DONE(cw_mount_part(mount, 1, &mapped));
    cw_tree_close(tree);
    publish(own, 2);
}

/* The new version comes, both go and come back, and all is closed. */
static void swapping(void) {
    cw_tree *tree;
    DONE(cw_tree_get(own, "m", 0, &tree));
    DONE(cw_mount_swap(mount, tree, NULL));
    DONE(cw_mount_unmap(mount, NULL));
    DONE(cw_mount_map(mount));
    DONE(*((uint8_t *)cw_array_data(mapped) + part_shape - 1) == 2 ? 0 : -EPROTO);
    cw_array_close(mapped);
    cw_mount_close(mount);
    cw_tree_close(tree);
}

static void (*run)(void);

static void child(void *unused) {
    (void)unused;
    connected();
    if (run == swapping)
        mounting();
    step_ready();
    run();
    step_done();
}

/* ---- a kill ---- */

static cw_client *connect_here(void) {
    cw_client *client;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0)
        fail_msg("%s", cw_error());
    return client;
}

static pid_t begin(void) {
    cw_client *client = connect_here();
    publish(client, 1);
    cw_client_unref(client);
    pid_t pid = step_fork(child, NULL);
    if (pid < 0) {
        print_message("skipped: ptrace is not allowed here\n");
        skip();
    }
    return pid;
}

/* The value that was found; nothing is left. */
static int end(void) {
    cw_client *client = connect_here();
    int value = look(client);
    assert_int_equal(cw_remove(client, "m"), 0);
    cw_client_unref(client);
    assert_true(world_holds_nothing(&world, LOOKS));
    return value;
}

static void at_many_instructions(void **state) {
    run = *(void (**)(void)) * state;
    part_shape = run == swapping ? APART : SMALL;
    leaf_shape = part_shape / LEAVES;
    struct step_path path;
    uint64_t old = 0, new = 0;
    pid_t pid = begin();
    assert_int_equal(step_trace(pid, &path), STEP_OVER);
    step_kill(pid);
    assert_int_equal(end(), run == reading ? 1 : 2);
    struct chance chance = chance_init(run == publishing);
    const uint64_t kills = (uint64_t)KILLS, stride = path.count / kills + 1;
    for (uint64_t n = chance_below(&chance, stride); n < path.count + stride; n += stride) {
        pid = begin();
        enum step_end how = step_to(pid, &path, n);
        step_kill(pid);
        assert_int_not_equal(how, STEP_BROKEN);
        *(end() == 1 ? &old : &new) += 1;
    }
    print_message(
        "# %d instructions, %d kills: %d times the version before, %d times the new one\n",
        (int)path.count, (int)(old + new), (int)old, (int)new);
    assert_true(run == swapping ? new > 0 && old == 0 : old > 0);
    step_path_deinit(&path);
}

static int set_up(void **state) {
    (void)state;
    world_start(&world);
    step_pin();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    world_stop(&world);
    return 0;
}

static void (*publisher)(void) = publishing, (*reader)(void) = reading, (*swapper)(void) = swapping;

int main(void) {
    const struct CMUnitTest tests[] = {
        {"a_publisher_killed_leaves_a_whole_version_and_no_memory", at_many_instructions, NULL,
         NULL, &publisher},
        {"a_swapper_killed_leaves_a_whole_version_and_no_memory", at_many_instructions, NULL, NULL,
         &swapper},
        {"a_reader_killed_leaves_a_whole_version_and_no_memory", at_many_instructions, NULL, NULL,
         &reader},
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
