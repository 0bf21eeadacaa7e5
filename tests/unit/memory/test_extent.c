/*
 * The promises of ipc/memory/extent.h: what is carved never overlaps, is aligned, and all comes
 * back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "ipc/memory/extent.h"
#include "tests/support.h"

#define ARENAS 3
#define LIVE   512

static uint64_t round_up(uint64_t bytes) {
    return (bytes + CW_CARVE_UNIT - 1) / CW_CARVE_UNIT * CW_CARVE_UNIT;
}

/* C1, C2, C4, and that carved extents are as many as the model has. */
static void check_arena(struct cw_arena *arena, uint64_t expected_carved) {
    uint64_t at = 0, free_bytes = 0, carved = 0;
    struct cw_extent *before = NULL;
    for (struct cw_extent *extent = arena->first; extent; extent = extent->after) {
        assert_int_equal(extent->offset_bytes, at);
        assert_true(extent->length_bytes > 0 && extent->length_bytes % CW_CARVE_UNIT == 0);
        assert_ptr_equal(extent->before, before);
        assert_false(before && !before->carved && !extent->carved);
        at += extent->length_bytes;
        if (extent->carved)
            carved++;
        else
            free_bytes += extent->length_bytes;
        before = extent;
    }
    assert_int_equal(at, arena->size_bytes);
    assert_int_equal(free_bytes, arena->free_bytes);
    assert_int_equal(carved, expected_carved);
}

static uint64_t random_size(struct chance *chance) {
    return 1 + chance_below(chance, 1ull << (1 + chance_below(chance, 20)));
}

static void random_work_agrees_with_a_model(void **state) {
    (void)state;
    static const uint64_t sizes[ARENAS] = {2 << 20, 4 << 20, 3 << 20};
    struct chance chance = chance_init(1);
    struct cw_carver carver = {.bins = {NULL}};
    struct cw_arena arenas[ARENAS];
    struct cw_extent *live[LIVE] = {NULL};
    uint8_t *owner[ARENAS]; /* the model: who has each unit; 0 nobody */
    uint64_t counts[ARENAS] = {0};
    for (int i = 0; i < ARENAS; i++) {
        assert_true(cw_arena_init(&arenas[i], &carver, NULL, sizes[i], true));
        owner[i] = calloc(sizes[i] / CW_CARVE_UNIT, 1);
    }
    uint64_t rounds = test_rounds(100000);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t slot = chance_below(&chance, LIVE);
        if (!live[slot]) {
            uint64_t size = random_size(&chance), align = CW_CARVE_UNIT << chance_below(&chance, 7);
            struct cw_extent *extent = cw_carve_take(&carver, size, align, false);
            live[slot] = extent;
            if (!extent)
                continue;
            uint64_t which = (uint64_t)(extent->arena - arenas);
            counts[which]++;
            assert_int_equal(extent->length_bytes, round_up(size));
            assert_int_equal(extent->offset_bytes % align, 0);
            for (uint64_t i = 0; i < extent->length_bytes / CW_CARVE_UNIT; i++) {
                uint8_t *unit = &owner[which][extent->offset_bytes / CW_CARVE_UNIT + i];
                assert_int_equal(*unit & 1, 0);
                assert_false(extent->clean && *unit); /* clean: nobody ever had it */
                *unit = 3;
            }
        } else {
            struct cw_extent *extent = live[slot];
            uint64_t which = (uint64_t)(extent->arena - arenas);
            for (uint64_t i = 0; i < extent->length_bytes / CW_CARVE_UNIT; i++)
                owner[which][extent->offset_bytes / CW_CARVE_UNIT + i] = 2;
            counts[which]--;
            cw_carve_give(extent);
            live[slot] = NULL;
        }
        if (round % 1000 == 0)
            for (int i = 0; i < ARENAS; i++)
                check_arena(&arenas[i], counts[i]);
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i])
            cw_carve_give(live[i]);
    for (int i = 0; i < ARENAS; i++) {
        check_arena(&arenas[i], 0);
        assert_null(arenas[i].first->after);
        cw_arena_deinit(&arenas[i]);
        free(owner[i]);
    }
    for (unsigned i = 0; i < CW_CARVE_BINS; i++)
        assert_null(carver.bins[i]);
}

static void a_block_of_the_whole_arena_fits_again_and_again(void **state) {
    (void)state;
    struct cw_carver carver = {.bins = {NULL}};
    struct cw_arena arena;
    assert_true(cw_arena_init(&arena, &carver, NULL, 256 << 20, true));
    for (int i = 0; i < 3; i++) {
        struct cw_extent *extent = cw_carve_take(&carver, 256 << 20, 4096, false);
        assert_non_null(extent);
        assert_int_equal(extent->clean, i == 0);
        assert_null(cw_carve_take(&carver, 1, CW_CARVE_UNIT, false));
        cw_carve_give(extent);
    }
    cw_arena_deinit(&arena);
    cw_arena_deinit(&arena); /* may be repeated */
}

static void an_arena_serves_only_what_it_is_for(void **state) {
    (void)state;
    struct cw_carver carver = {.bins = {NULL}};
    struct cw_arena arena;
    assert_true(cw_arena_init(&arena, &carver, NULL, 1 << 20, true));
    arena.least_bytes = 1 << 18;
    assert_null(cw_carve_take(&carver, (1 << 18) - 64, 64, false));
    struct cw_extent *extent = cw_carve_take(&carver, 1 << 18, 64, false);
    assert_non_null(extent);
    arena.full = true;
    assert_null(cw_carve_take(&carver, 1 << 18, 64, false));
    cw_carve_give(extent);
    assert_null(cw_carve_take(&carver, UINT64_MAX, 64, false));
    cw_arena_deinit(&arena);
}

static void a_claim_takes_free_ranges_alone(void **state) {
    (void)state;
    struct cw_carver carver = {.bins = {NULL}};
    struct cw_arena arena;
    assert_true(cw_arena_init(&arena, &carver, NULL, 4096, false));
    struct cw_extent *high = cw_arena_claim(&arena, 2048, 1024);
    assert_non_null(high);
    assert_non_null(cw_arena_claim(&arena, 0, 64));
    check_arena(&arena, 2);
    assert_null(cw_arena_claim(&arena, 0, 64));     /* taken */
    assert_null(cw_arena_claim(&arena, 1984, 128)); /* reaches into the next */
    assert_null(cw_arena_claim(&arena, 4032, 128)); /* beyond the end */
    assert_null(cw_arena_claim(&arena, 100, 64));   /* not in units */
    assert_null(cw_arena_claim(&arena, 64, 0));     /* nothing */
    assert_null(cw_arena_claim(&arena, UINT64_MAX - 63, 128));
    cw_carve_give(high);
    check_arena(&arena, 1);
    cw_arena_deinit(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_work_agrees_with_a_model),
        cmocka_unit_test(a_block_of_the_whole_arena_fits_again_and_again),
        cmocka_unit_test(an_arena_serves_only_what_it_is_for),
        cmocka_unit_test(a_claim_takes_free_ranges_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
