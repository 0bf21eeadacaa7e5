/*
 * SLURM's lists of nodes: each form to its names, in the order of `scontrol show hostnames`; what
 * is none is refused with a sentence and leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "broker/bridge/wire/frame.c"
#include "broker/bridge/cli/nodelist.c"

static void is(const char *list, const char *expected) {
    char **names, all[4096] = "";
    uint32_t count;
    assert_int_equal(cwb_nodelist_expand(list, 1024, &names, &count), 0);
    for (uint32_t i = 0; i < count; i++) {
        strcat(all, i ? " " : "");
        strcat(all, names[i]);
    }
    assert_string_equal(all, expected);
    cwb_nodelist_free(names, count);
}

static void each_form_is_known(void **state) {
    (void)state;
    is("a", "a");
    is("a,b,c", "a b c");
    is("node[1-3]", "node1 node2 node3");
    is("node[3,1]", "node3 node1");
    is("node[01-03,07,10-11]", "node01 node02 node03 node07 node10 node11");
    is("node[098-101]", "node098 node099 node100 node101");
    is("node[8-11]", "node8 node9 node10 node11");
    is("gpu5,node[1-2],big", "gpu5 node1 node2 big");
    is("rack[1-2]n[01-02]", "rack1n01 rack1n02 rack2n01 rack2n02");
    is("node[1-2]-ib", "node1-ib node2-ib");
    is("c[1,3]r[7]x", "c1r7x c3r7x");
    is("[1-2]", "1 2");
    is("tux[0-0]", "tux0");
    is("node[000000001-000000002]", "node000000001 node000000002");
    is("a.example.org,b_c", "a.example.org b_c");
}

static void what_is_no_list_is_refused(void **state) {
    static const char *const wrong[] = {
        "",
        ",",
        "a,",
        ",a",
        "a,,b",
        "node[",
        "node]",
        "node[]",
        "node[1",
        "node[1-",
        "node[1-]",
        "node[-1]",
        "node[1,]",
        "node[,1]",
        "node[1,,2]",
        "node[3-1]",
        "node[1-2-3]",
        "node[a-b]",
        "node[1 ]",
        "node[[1-2]]",
        "node[1]]",
        "node[0x1]",
        "a b",
        "a/b",
        "a\nb",
        ".a",
        "-a",
        "a[1-2],b[",
        "n[1234567890]",
        "n[1-9999999999]",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[1-2]",
    };
    (void)state;
    char **names;
    uint32_t count;
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (cwb_nodelist_expand(wrong[i], 1024, &names, &count) != -EINVAL)
            fail_msg("\"%s\" was taken", wrong[i]);
        assert_non_null(strstr(cw_detail(), "the list of nodes"));
    }
}

static void how_many_there_may_be_is_kept_to(void **state) {
    (void)state;
    char **names;
    uint32_t count;
    assert_int_equal(cwb_nodelist_expand("n[0001-1024]", 1024, &names, &count), 0);
    assert_int_equal(count, 1024);
    assert_string_equal(names[1023], "n1024");
    cwb_nodelist_free(names, count);
    assert_int_equal(cwb_nodelist_expand("n[1-999999999]", 1024, &names, &count), -EINVAL);
    assert_non_null(strstr(cw_detail(), "more than 1024"));
    assert_int_equal(cwb_nodelist_expand("n[1-9]m[1-9]k[1-9]x[1-9]", 1024, &names, &count),
                     -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_is_known),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test(how_many_there_may_be_is_kept_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
