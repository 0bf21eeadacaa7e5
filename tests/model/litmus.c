/*
 * Litmus tests of the model itself: the classic small programs, with what C11 (as amended by C++20)
 * says of each. An outcome that is allowed must be found, one that is forbidden must not be.
 */
#include "scenarios.h"

#include "shm/base/atomic.h"

static cw_a64 x, y;
static uint64_t data;
static struct { uint64_t r[4]; } ghost;

static void zero(void) {
    x = y = 0;
    data = 0;
}

static void zero_plain(void) {
    zero();
    model_plain(&data);
}

#define THREAD(name, ...)                                                                          \
    static void name(void) {                                                                       \
        __VA_ARGS__                                                                                \
    }
#define FINAL(name, outcome)                                                                       \
    static void name(void) {                                                                       \
        if (outcome)                                                                               \
            model_fail("%s", #outcome);                                                            \
    }

/* Store, then look at the other side: the shape of sleeping and of leases. */
THREAD(sb_cc_0, CW_STORE(T, &x, 1, seq_cst); ghost.r[0] = CW_LOAD(T, &y, seq_cst);)
THREAD(sb_cc_1, CW_STORE(T, &y, 1, seq_cst); ghost.r[1] = CW_LOAD(T, &x, seq_cst);)
THREAD(sb_rc_1, CW_STORE(T, &y, 1, release); ghost.r[1] = CW_LOAD(T, &x, seq_cst);)
THREAD(sb_ca_1, CW_STORE(T, &y, 1, seq_cst); ghost.r[1] = CW_LOAD(T, &x, acquire);)
THREAD(sb_xc_1, CW_XCHG(T, &y, 1, seq_cst); ghost.r[1] = CW_LOAD(T, &x, seq_cst);)
THREAD(sb_xr_1, CW_XCHG(T, &y, 1, acq_rel); ghost.r[1] = CW_LOAD(T, &x, seq_cst);)
FINAL(sb_both_missed, ghost.r[0] == 0 && ghost.r[1] == 0)

/* Message passing: a payload, then a flag. */
THREAD(mp_release, model_plain_write(&data, 7); CW_STORE(T, &x, 1, release);)
THREAD(mp_relaxed, model_plain_write(&data, 7); CW_STORE(T, &x, 1, relaxed);)
THREAD(mp_acquire, if (CW_LOAD(T, &x, acquire)) MODEL_CHECK(model_plain_read(&data) == 7);)
THREAD(mp_blind, if (CW_LOAD(T, &x, relaxed)) MODEL_CHECK(model_plain_read(&data) == 7);)
THREAD(mp_count, if (CW_LOAD(T, &x, relaxed) == 1) CW_ADD(T, &x, 1, relaxed);)
THREAD(mp_second, if (CW_LOAD(T, &x, acquire) == 2) MODEL_CHECK(model_plain_read(&data) == 7);)
THREAD(mp_reuse, if (CW_LOAD(T, &x, acquire)) model_plain_write(&data, 9);)
THREAD(mp_read_release, (void)model_plain_read(&data); CW_STORE(T, &x, 1, release);)
THREAD(mp_read_relaxed, (void)model_plain_read(&data); CW_STORE(T, &x, 1, relaxed);)

/* Two readers see two writers in opposite orders. */
THREAD(iriw_a_0, CW_STORE(T, &x, 1, release);)
THREAD(iriw_a_1, CW_STORE(T, &y, 1, release);)
THREAD(iriw_a_2, ghost.r[0] = CW_LOAD(T, &x, acquire); ghost.r[1] = CW_LOAD(T, &y, acquire);)
THREAD(iriw_a_3, ghost.r[2] = CW_LOAD(T, &y, acquire); ghost.r[3] = CW_LOAD(T, &x, acquire);)
THREAD(iriw_c_0, CW_STORE(T, &x, 1, seq_cst);)
THREAD(iriw_c_1, CW_STORE(T, &y, 1, seq_cst);)
THREAD(iriw_c_2, ghost.r[0] = CW_LOAD(T, &x, seq_cst); ghost.r[1] = CW_LOAD(T, &y, seq_cst);)
THREAD(iriw_c_3, ghost.r[2] = CW_LOAD(T, &y, seq_cst); ghost.r[3] = CW_LOAD(T, &x, seq_cst);)
FINAL(iriw_opposite, ghost.r[0] == 1 && ghost.r[1] == 0 && ghost.r[2] == 1 && ghost.r[3] == 0)

/* Two writers to two words: may both words end with the first store of each? */
THREAD(w22_r_0, CW_STORE(T, &x, 1, release); CW_STORE(T, &y, 2, release);)
THREAD(w22_r_1, CW_STORE(T, &y, 1, release); CW_STORE(T, &x, 2, release);)
THREAD(w22_c_0, CW_STORE(T, &x, 1, seq_cst); CW_STORE(T, &y, 2, seq_cst);)
THREAD(w22_c_1, CW_STORE(T, &y, 1, seq_cst); CW_STORE(T, &x, 2, seq_cst);)
FINAL(w22_first, CW_LOAD(T, &x, relaxed) == 1 && CW_LOAD(T, &y, relaxed) == 1)

/* One word is read in one order by everybody. */
THREAD(corr_0, CW_STORE(T, &x, 1, relaxed); CW_STORE(T, &x, 2, relaxed);)
THREAD(corr_1, ghost.r[0] = CW_LOAD(T, &x, relaxed); ghost.r[1] = CW_LOAD(T, &x, relaxed);)
FINAL(corr_back, ghost.r[0] > ghost.r[1])

/* Read-modify-writes lose nothing. */
THREAD(add_one, CW_ADD(T, &x, 1, relaxed);)
FINAL(add_lost, CW_LOAD(T, &x, relaxed) != 3)

#define LITMUS(text, start, end, may, ...)                                                         \
    {                                                                                              \
        .scenario = {.name = text,                                                                 \
                     .init = start,                                                                \
                     .final = end,                                                                 \
                     .threads = {__VA_ARGS__},                                                     \
                     .ghost = &ghost,                                                              \
                     .ghost_bytes = sizeof ghost},                                                 \
        .allowed = may                                                                             \
    }

const struct model_litmus model_litmus[] = {
    LITMUS("store buffering, all seq_cst", zero, sb_both_missed, false, sb_cc_0, sb_cc_1),
    LITMUS("store buffering, one store release", zero, sb_both_missed, true, sb_cc_0, sb_rc_1),
    LITMUS("store buffering, one load acquire", zero, sb_both_missed, true, sb_cc_0, sb_ca_1),
    LITMUS("store buffering, seq_cst exchange", zero, sb_both_missed, false, sb_cc_0, sb_xc_1),
    LITMUS("store buffering, acq_rel exchange", zero, sb_both_missed, true, sb_cc_0, sb_xr_1),
    LITMUS("message passing, release and acquire", zero_plain, NULL, false, mp_release, mp_acquire),
    LITMUS("message passing, store relaxed", zero_plain, NULL, true, mp_relaxed, mp_acquire),
    LITMUS("message passing, load relaxed", zero_plain, NULL, true, mp_release, mp_blind),
    LITMUS("message passing through a relaxed add", zero_plain, NULL, false, mp_release, mp_count,
           mp_second),
    LITMUS("reuse after release", zero_plain, NULL, false, mp_read_release, mp_reuse),
    LITMUS("reuse after a relaxed store", zero_plain, NULL, true, mp_read_relaxed, mp_reuse),
    LITMUS("independent reads, acquire", zero, iriw_opposite, true, iriw_a_0, iriw_a_1, iriw_a_2,
           iriw_a_3),
    LITMUS("independent reads, seq_cst", zero, iriw_opposite, false, iriw_c_0, iriw_c_1, iriw_c_2,
           iriw_c_3),
    LITMUS("two words written twice, release", zero, w22_first, true, w22_r_0, w22_r_1),
    LITMUS("two words written twice, seq_cst", zero, w22_first, false, w22_c_0, w22_c_1),
    LITMUS("one word read backwards", zero, corr_back, false, corr_0, corr_1),
    LITMUS("an addition lost", zero, add_lost, false, add_one, add_one, add_one),
    {.scenario = {.name = NULL}},
};
