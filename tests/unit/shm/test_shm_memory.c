/*
 * The promises of cw_memory_check: where memory ends there is an error with the limit named, and
 * neither a signal (RLIMIT_FSIZE) nor a kill (a memory cgroup).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/resource.h>

#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "tests/cgroup.h"
#include "tests/support.h"

#define MIB ((uint64_t)1 << 20)

static void little_memory_is_there(void **state) {
    (void)state;
    assert_int_equal(cw_memory_check(0), 0);
    assert_int_equal(cw_memory_check(4096), 0);
    assert_int_equal(cw_memory_check(1 * MIB), 0);
}

static void more_than_the_machine_has_is_refused_with_a_sentence(void **state) {
    (void)state;
    const uint64_t sizes[] = {1ull << 46, 1ull << 62, UINT64_MAX, UINT64_MAX - MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(cw_memory_check(sizes[i]), -EDQUOT);
        assert_non_null(strstr(cw_detail(), "available"));
    }
}

static int below_rlimit_fsize(void *context) {
    (void)context;
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 1 * MIB;
    setrlimit(RLIMIT_FSIZE, &limit);
    struct cw_segment segment;
    if (cw_segment_create("test", 1 * MIB, CW_SEGMENT_SESSION, 0, 0, &segment) != 0)
        return 1;
    if (cw_segment_create("test", 1 * MIB + 1, CW_SEGMENT_SESSION, 0, 0, &segment) != -EDQUOT)
        return 2;
    if (!strstr(cw_detail(), "RLIMIT_FSIZE"))
        return 3;
    limit.rlim_cur = 4096; /* below the size that the other checks skip */
    setrlimit(RLIMIT_FSIZE, &limit);
    if (cw_segment_create("test", 8192, CW_SEGMENT_SESSION, 0, 0, &segment) != -EDQUOT)
        return 4;
    return 0;
}

static void past_rlimit_fsize_is_an_error_and_no_signal(void **state) {
    (void)state;
    assert_int_equal(in_child(below_rlimit_fsize, NULL), 0);
}

static int without_descriptors(void *context) {
    (void)context;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct cw_segment segment;
    return cw_segment_create("test", 4096, CW_SEGMENT_SESSION, 0, 0, &segment) == -EDQUOT ? 0 : 1;
}

static void no_descriptor_left_is_a_limit(void **state) {
    (void)state;
    assert_int_equal(in_child(without_descriptors, NULL), 0);
}

static int without_address_space(void *context) {
    (void)context;
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = 64 * MIB;
    setrlimit(RLIMIT_AS, &limit);
    struct cw_segment segment;
    int code = cw_segment_create("test", 96 * MIB, CW_SEGMENT_SESSION, 0, 0, &segment);
    return code == -EDQUOT ? 0 : 1;
}

static void no_address_space_left_is_a_limit(void **state) {
    (void)state;
    if (CW_TEST_SANITIZED)
        skip(); /* a sanitizer's own maps are larger than any limit */
    assert_int_equal(in_child(without_address_space, NULL), 0);
}

/* ---- a memory cgroup of our own ---- */

static int inside_a_memory_cgroup(void *context) {
    struct cgroup *group = context;
    if (!cgroup_join(group, 0))
        return 77;
    struct cw_segment segment;
    if (cw_segment_create("test", 96 * MIB, CW_SEGMENT_SESSION, 0, 0, &segment) != -EDQUOT)
        return 1;
    if (!strstr(cw_detail(), "cw-test-"))
        return 2; /* the sentence names the cgroup */
    /* Pieces, until it says no: an error and never the kernel's kill. */
    int made = 0;
    while (made < 100) {
        int code = cw_segment_create("test", 4 * MIB, CW_SEGMENT_SESSION, 0, 0, &segment);
        if (code == -EDQUOT)
            break;
        if (code)
            return 3;
        made++;
    }
    return made >= 4 && made < 24 ? 0 : 4;
}

static void past_a_memory_cgroups_limit_is_an_error_and_no_kill(void **state) {
    (void)state;
    if (CW_TEST_SANITIZED)
        skip(); /* a sanitizer's own memory is not what this limit is for */
    struct cgroup group;
    if (!cgroup_open(&group, 96 * MIB)) {
        print_message("skipped: no memory cgroup can be made here\n");
        skip();
    }
    int status = in_child(inside_a_memory_cgroup, &group);
    cgroup_close(&group);
    if (status == 77) {
        print_message("skipped: a process may not be moved into a memory cgroup here\n");
        skip();
    }
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(little_memory_is_there),
        cmocka_unit_test(more_than_the_machine_has_is_refused_with_a_sentence),
        cmocka_unit_test(past_rlimit_fsize_is_an_error_and_no_signal),
        cmocka_unit_test(no_descriptor_left_is_a_limit),
        cmocka_unit_test(no_address_space_left_is_a_limit),
        cmocka_unit_test(past_a_memory_cgroups_limit_is_an_error_and_no_kill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
