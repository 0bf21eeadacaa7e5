/*
 * When the bridge's loop spins: for an answer or a next question that came soon before, and no
 * longer than a wake-up takes; where that is in vain it backs off.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "broker/bridge/io/spin.c"

#define SOON ((int64_t)CW_SPIN_NS / 2)
#define LATE ((int64_t)CW_SPIN_NS + 1)

static struct cwb_spin made(unsigned cores) {
    struct cwb_spin spin;
    cwb_spin_init(&spin, cores);
    return spin;
}

static void few_cores_are_left_to_others(void **state) {
    (void)state;
    struct cwb_spin spin = made(CWB_SPIN_CORES - 1);
    int64_t last_ns = 0;
    cwb_spin_asked(&spin, 1000);
    cwb_spin_served(&spin, &last_ns, 1000);
    cwb_spin_served(&spin, &last_ns, 1000 + SOON);
    assert_int_equal(spin.until_ns, 0);
    cwb_spin_answered(&spin, true, 5000); /* but for a client on another core */
    assert_int_equal(spin.until_ns, 5000 + CW_SPIN_NS);
    cwb_spin_end(&spin);
    assert_int_equal(spin.until_ns, 0);
}

static void for_an_answer_as_long_as_it_comes_soon(void **state) {
    (void)state;
    struct cwb_spin spin = made(CWB_SPIN_CORES);
    for (int64_t now_ns = 1; now_ns < 100 * LATE; now_ns += LATE) {
        cwb_spin_asked(&spin, now_ns);
        assert_int_equal(spin.until_ns, now_ns + CW_SPIN_NS);
        cwb_spin_asked(&spin, now_ns + 1); /* another client: it spins already */
        assert_int_equal(spin.until_ns, now_ns + CW_SPIN_NS);
        cwb_spin_answered(&spin, false, now_ns + SOON);
    }
}

/* How many of so many questions it spun for, if each is answered after so long a time. */
static int spun_for(struct cwb_spin *spin, int questions, int64_t answer_ns, int64_t *now_ns) {
    int count = 0;
    for (int i = 0; i < questions; i++) {
        *now_ns += 10 * LATE;
        cwb_spin_asked(spin, *now_ns);
        count += spin->until_ns == *now_ns + CW_SPIN_NS;
        *now_ns += answer_ns;
        cwb_spin_answered(spin, false, *now_ns);
    }
    return count;
}

static void in_vain_it_backs_off(void **state) {
    (void)state;
    struct cwb_spin spin = made(64);
    int64_t now_ns = 1;
    assert_int_equal(spun_for(&spin, 2, LATE, &now_ns), 2);
    assert_int_equal(spun_for(&spin, 1, LATE, &now_ns), 0);
    assert_int_equal(spun_for(&spin, 60, LATE, &now_ns), 5); /* after 1, 2, 4, 8 and 16 sleeps... */
    assert_int_equal(spun_for(&spin, 3300, LATE, &now_ns), 100); /* ...and then after 32 each */
    assert_in_range(spun_for(&spin, 40, SOON, &now_ns), 8, 40);  /* the first in time counts */
    assert_int_equal(spun_for(&spin, 40, SOON, &now_ns), 40);
}

static void who_asked_and_went_is_waited_for_no_more(void **state) {
    (void)state;
    struct cwb_spin spin = made(64);
    cwb_spin_asked(&spin, 1000);
    cwb_spin_asked(&spin, 1000 + LATE); /* the first was never answered: one miss */
    assert_int_equal(spin.misses, 1);
    assert_int_equal(spin.until_ns, 1000 + LATE + CW_SPIN_NS);
}

static void for_the_next_question_of_who_asks_on(void **state) {
    (void)state;
    struct cwb_spin spin = made(64);
    int64_t last_ns = 0;
    cwb_spin_served(&spin, &last_ns, 1000);
    assert_int_equal(spin.until_ns, 0);
    cwb_spin_served(&spin, &last_ns, 1000 + SOON);
    assert_int_equal(spin.until_ns, 1000 + SOON + CW_SPIN_NS);
    cwb_spin_served(&spin, &last_ns, 1000 + SOON + LATE);
    assert_int_equal(spin.until_ns, 1000 + SOON + CW_SPIN_NS); /* not again: it was too late */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_cores_are_left_to_others),
        cmocka_unit_test(for_an_answer_as_long_as_it_comes_soon),
        cmocka_unit_test(in_vain_it_backs_off),
        cmocka_unit_test(who_asked_and_went_is_waited_for_no_more),
        cmocka_unit_test(for_the_next_question_of_who_asks_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
