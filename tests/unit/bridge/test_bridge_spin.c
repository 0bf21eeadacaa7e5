/*
 * When the bridge's loop stays awake: for an answer or a next question that came soon before, and
 * no longer than a wake-up takes; where that is in vain it is tried ever more rarely.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "broker/bridge/io/spin.c"

#define SOON ((int64_t)CW_SPIN_NS / 2)
#define LATE ((int64_t)CW_SPIN_NS + 1)

static struct cwb_awake made(unsigned cores) {
    struct cwb_awake awake;
    cwb_awake_init(&awake, cores);
    return awake;
}

static void few_cores_are_left_to_others(void **state) {
    (void)state;
    struct cwb_awake awake = made(CWB_AWAKE_CORES - 1);
    int64_t last_ns = 0;
    cwb_awake_asked(&awake, 1000);
    cwb_awake_served(&awake, &last_ns, 1000);
    cwb_awake_served(&awake, &last_ns, 1000 + SOON);
    assert_int_equal(awake.until_ns, 0);
    cwb_awake_answered(&awake, true, 5000); /* but for a client on another core */
    assert_int_equal(awake.until_ns, 5000 + CW_SPIN_NS);
    cwb_awake_end(&awake);
    assert_int_equal(awake.until_ns, 0);
}

static void for_an_answer_as_long_as_it_comes_soon(void **state) {
    (void)state;
    struct cwb_awake awake = made(CWB_AWAKE_CORES);
    for (int64_t now_ns = 1; now_ns < 100 * LATE; now_ns += LATE) {
        cwb_awake_asked(&awake, now_ns);
        assert_int_equal(awake.until_ns, now_ns + CW_SPIN_NS);
        cwb_awake_asked(&awake, now_ns + 1); /* another client: it is awake already */
        assert_int_equal(awake.until_ns, now_ns + CW_SPIN_NS);
        cwb_awake_answered(&awake, false, now_ns + SOON);
    }
}

/* How many of so many questions it was awake for, if each is answered after so long a time. */
static int awake_for(struct cwb_awake *awake, int questions, int64_t answer_ns, int64_t *now_ns) {
    int count = 0;
    for (int i = 0; i < questions; i++) {
        *now_ns += 10 * LATE;
        cwb_awake_asked(awake, *now_ns);
        count += awake->until_ns == *now_ns + CW_SPIN_NS;
        *now_ns += answer_ns;
        cwb_awake_answered(awake, false, *now_ns);
    }
    return count;
}

static void in_vain_it_is_tried_more_rarely(void **state) {
    (void)state;
    struct cwb_awake awake = made(64);
    int64_t now_ns = 1;
    assert_int_equal(awake_for(&awake, 2, LATE, &now_ns), 2);
    assert_int_equal(awake_for(&awake, 1, LATE, &now_ns), 0);
    assert_int_equal(awake_for(&awake, 60, LATE, &now_ns), 5); /* after 1, 2, 4, 8 and 16 naps... */
    assert_int_equal(awake_for(&awake, 3300, LATE, &now_ns), 100); /* ...and then after 32 each */
    assert_in_range(awake_for(&awake, 40, SOON, &now_ns), 8, 40);  /* the first in time counts */
    assert_int_equal(awake_for(&awake, 40, SOON, &now_ns), 40);
}

static void who_asked_and_went_is_waited_for_no_more(void **state) {
    (void)state;
    struct cwb_awake awake = made(64);
    cwb_awake_asked(&awake, 1000);
    cwb_awake_asked(&awake, 1000 + LATE); /* the first was never answered: once in vain */
    assert_int_equal(awake.vain, 1);
    assert_int_equal(awake.until_ns, 1000 + LATE + CW_SPIN_NS);
}

static void for_the_next_question_of_who_asks_on(void **state) {
    (void)state;
    struct cwb_awake awake = made(64);
    int64_t last_ns = 0;
    cwb_awake_served(&awake, &last_ns, 1000);
    assert_int_equal(awake.until_ns, 0);
    cwb_awake_served(&awake, &last_ns, 1000 + SOON);
    assert_int_equal(awake.until_ns, 1000 + SOON + CW_SPIN_NS);
    cwb_awake_served(&awake, &last_ns, 1000 + SOON + LATE);
    assert_int_equal(awake.until_ns, 1000 + SOON + CW_SPIN_NS); /* not again: it was too late */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_cores_are_left_to_others),
        cmocka_unit_test(for_an_answer_as_long_as_it_comes_soon),
        cmocka_unit_test(in_vain_it_is_tried_more_rarely),
        cmocka_unit_test(who_asked_and_went_is_waited_for_no_more),
        cmocka_unit_test(for_the_next_question_of_who_asks_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
