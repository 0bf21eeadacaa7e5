/*
 * The model check: every scenario as the source is, then with each operation made weaker, one at a
 * time. `make test` runs it; it is deterministic. Exit status 1 if a litmus test or a scenario
 * fails, if a weaker operation is not noticed, or if a seq_cst of the source is in no scenario.
 *
 * Arguments: none, or -v or -t, and then the beginning of the names of the scenarios to run. -v
 * prints times, -t also the steps by which each weaker operation failed. With CABLEWAY_SOAK set,
 * orders that are listed as not needed are tried too.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scenarios.h"
#include "shm/base/atomic.h"

#define SCENARIOS_MAX (MODEL_SCENARIOS - 1)
#define LITMUS        (MODEL_SCENARIOS - 1)

static const struct model_scenario *scenarios[SCENARIOS_MAX];
static uint64_t scenario_states[SCENARIOS_MAX];
static unsigned scenario_count;
static bool verbose, traces;
static bool thorough;    /* look whether what is listed as not needed really is not */
static const char *only; /* names begin so; NULL: all */

static const char *const access_names[] = {"load", "store", "read-modify-write"};
static const char *const order_names[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};

static void add(const struct model_scenario *list) {
    for (; list->name; list++) {
        if (only && strncmp(list->name, only, strlen(only)) != 0)
            continue;
        if (scenario_count == SCENARIOS_MAX)
            abort();
        scenarios[scenario_count++] = list;
    }
}

static bool run_litmus(void) {
    bool good = true;
    struct model_result result;
    printf("The memory model itself\n");
    for (const struct model_litmus *l = model_litmus; l->scenario.name; l++) {
        model_explore(&l->scenario, LITMUS, NULL, MODEL_AS_IS, &result);
        bool fits = result.failed == l->allowed;
        good = good && fits;
        printf("  %-44s %-9s %6llu states  %s\n", l->scenario.name,
               result.failed ? "found" : "not found", (unsigned long long)result.states,
               fits ? "ok" : "WRONG");
    }
    return good;
}

static bool run_baseline(void) {
    bool good = true;
    struct model_result result;
    printf("The source as it is\n");
    for (unsigned s = 0; s < scenario_count; s++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        model_explore(scenarios[s], s, NULL, MODEL_AS_IS, &result);
        clock_gettime(CLOCK_MONOTONIC, &to);
        scenario_states[s] = result.states;
        printf("  %-44s %8llu executions %8llu states %4u steps  %s", scenarios[s]->name,
               (unsigned long long)result.executions, (unsigned long long)result.states,
               result.depth, result.failed == scenarios[s]->fails ? "ok: " : "FAILED: ");
        printf("%s", result.failed && !scenarios[s]->fails ? result.reason : scenarios[s]->promise);
        if (verbose)
            printf(" (%.2f s)",
                   (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
        printf("\n");
        fflush(stdout);
        if (result.failed != scenarios[s]->fails) {
            good = false;
            if (result.failed)
                model_print_trace(stdout);
        }
    }
    return good;
}

/* Every seq_cst operation of shm/, ipc/ and broker/, as check_labels.py finds them. */
static const struct {
    const char *name;
    enum model_access access;
} required[] = {
#include "required.inc"
};

static bool met_all(void) {
    bool good = true;
    for (size_t r = 0; r < sizeof required / sizeof required[0]; r++) {
        bool met = false;
        for (unsigned i = 0; i < model_label_count; i++)
            met = met || (strcmp(model_labels[i].name, required[r].name) == 0 &&
                          model_labels[i].access == required[r].access &&
                          model_labels[i].order == CW_MO_seq_cst);
        if (!met)
            printf("  %s (%s, seq_cst) is in no scenario\n", required[r].name,
                   access_names[required[r].access]);
        good = good && met;
    }
    return good;
}

static bool can_weaken(const struct model_label *label, enum model_weak weak) {
    switch (weak) {
    case MODEL_NOT_SEQ_CST:
        return label->order == CW_MO_seq_cst;
    case MODEL_NOT_ACQUIRE:
        return label->order == CW_MO_acq_rel ||
               (label->order == CW_MO_acquire && label->access != MODEL_STORE);
    case MODEL_NOT_RELEASE:
        return label->order == CW_MO_acq_rel ||
               (label->order == CW_MO_release && label->access != MODEL_LOAD);
    case MODEL_AS_IS:
    default:
        return false;
    }
}

/* The scenario, smallest first, that notices; -1: none. */
static int notice(const struct model_label *label, enum model_weak weak,
                  struct model_result *result) {
    bool left[MODEL_SCENARIOS];
    memcpy(left, label->scenarios, sizeof left);
    for (unsigned s = 0; s < scenario_count; s++)
        left[s] = left[s] && !scenarios[s]->fails;
    for (;;) {
        unsigned best = SCENARIOS_MAX;
        for (unsigned s = 0; s < scenario_count; s++)
            if (left[s] && (best == SCENARIOS_MAX || scenario_states[s] < scenario_states[best]))
                best = s;
        if (best == SCENARIOS_MAX)
            return -1;
        left[best] = false;
        model_explore(scenarios[best], best, label, weak, result);
        if (result->failed)
            return (int)best;
    }
}

/* Orders that no scenario needs, and why they stand. A seq_cst may not be here. */
static const struct {
    const char *name;
    enum model_access access;
    enum model_weak weak;
    const char *why;
} unneeded[] = {
    {"W4", MODEL_RMW, MODEL_NOT_ACQUIRE, "the sleeper looks again by itself (R4, R5)"},
    {"W4", MODEL_RMW, MODEL_NOT_RELEASE, "the sleeper looks again by itself (R4, R5)"},
    {"W13", MODEL_RMW, MODEL_NOT_RELEASE, "the kernel's wake stands between the number and it"},
    {"B2", MODEL_RMW, MODEL_NOT_ACQUIRE, "B1 loads the word again"},
    {"B2", MODEL_RMW, MODEL_NOT_RELEASE, "a taker has nothing to publish"},
    {"B4", MODEL_RMW, MODEL_NOT_ACQUIRE, "L2 acquired the last drop"},
    {"B10", MODEL_RMW, MODEL_NOT_ACQUIRE, "the broker alone acts on what it reads"},
    {"B10", MODEL_RMW, MODEL_NOT_RELEASE, "advice to droppers"},
    {"B11", MODEL_RMW, MODEL_NOT_ACQUIRE, "the broker alone acts on what it reads"},
    {"B11", MODEL_RMW, MODEL_NOT_RELEASE, "the block stays as it was"},
    {"B13", MODEL_LOAD, MODEL_NOT_ACQUIRE, "L2 acquired the last drop"},
    {"B16", MODEL_RMW, MODEL_NOT_ACQUIRE, "the owner has nothing to learn"},
    {"B16", MODEL_RMW, MODEL_NOT_RELEASE, "the owner has nothing to publish"},
    {"B18", MODEL_RMW, MODEL_NOT_ACQUIRE, "L2 acquired the last drop"},
    {"B18", MODEL_RMW, MODEL_NOT_RELEASE, "the owner touches nothing of the slab again"},
    {"B19", MODEL_RMW, MODEL_NOT_ACQUIRE, "the slab stays as it was"},
    {"B19", MODEL_RMW, MODEL_NOT_RELEASE, "the slab stays as it was"},
    {"F1", MODEL_STORE, MODEL_NOT_RELEASE, "nothing on the CPU reads what was enqueued"},
    {"D2", MODEL_STORE, MODEL_NOT_RELEASE, "a reader that meets an old record looks again"},
    {"D2", MODEL_LOAD, MODEL_NOT_ACQUIRE, "a reader that meets an old record looks again"},
    {"D4", MODEL_LOAD, MODEL_NOT_ACQUIRE, "D5 stands between the words and D4"},
    {"Q6", MODEL_RMW, MODEL_NOT_RELEASE, "for a third one, who takes the turn and cleared nothing"},
    {"Q15", MODEL_LOAD, MODEL_NOT_ACQUIRE,
     "W7 has acquired it, or the number that is slept on moves"},
    {"Q16", MODEL_RMW, MODEL_NOT_RELEASE, "W11 of the rouse stands behind it"},
    {"N4", MODEL_RMW, MODEL_NOT_RELEASE, "W11 of the rouse stands behind it"},
    {"G8", MODEL_RMW, MODEL_NOT_ACQUIRE, "what stood under the stamp is not looked at"},
    {"G8", MODEL_RMW, MODEL_NOT_RELEASE, "no work was done under the stamp"},
    {"T6", MODEL_RMW, MODEL_NOT_ACQUIRE,
     "T4 has read what T3 published, after the cell was filled"},
    {"T8", MODEL_RMW, MODEL_NOT_RELEASE, "who finds the same place passed by moves on too"},
    {"T9", MODEL_STORE, MODEL_NOT_RELEASE, "T12 follows; for a death between it and the answer"},
    {"T18", MODEL_RMW, MODEL_NOT_RELEASE, "who does not see it yet wakes one too many"},
    {"T31", MODEL_RMW, MODEL_NOT_RELEASE, "what lies in the cell is the parent's own"},
    {"T35", MODEL_RMW, MODEL_NOT_RELEASE, "all who sleep are roused after it"},
    {"D8", MODEL_RMW, MODEL_NOT_RELEASE, "numbers for monitors"},
};

static const char *unneeded_why(const struct model_label *label, enum model_weak weak) {
    for (size_t i = 0; i < sizeof unneeded / sizeof unneeded[0]; i++)
        if (strcmp(unneeded[i].name, label->name) == 0 && unneeded[i].access == label->access &&
            unneeded[i].weak == weak)
            return unneeded[i].why;
    return NULL;
}

/* Not in litmus tests alone. */
static bool in_a_scenario(const struct model_label *label) {
    for (unsigned s = 0; s < scenario_count; s++)
        if (label->scenarios[s])
            return true;
    return false;
}

static bool run_weakened(void) {
    static const char *const to[][3] = {[MODEL_NOT_SEQ_CST] = {"acquire", "release", "acq_rel"},
                                        [MODEL_NOT_ACQUIRE] = {"relaxed", "", "release"},
                                        [MODEL_NOT_RELEASE] = {"", "relaxed", "acquire"}};
    bool good = true;
    struct model_result result;
    printf("One operation weaker\n");
    for (unsigned i = 0; i < model_label_count; i++) {
        const struct model_label *label = &model_labels[i];
        if (!in_a_scenario(label))
            continue;
        for (int weak = MODEL_NOT_SEQ_CST; weak <= MODEL_NOT_RELEASE; weak++) {
            if (!can_weaken(label, (enum model_weak)weak))
                continue;
            const char *why = unneeded_why(label, (enum model_weak)weak);
            int by = why && !thorough ? -1 : notice(label, (enum model_weak)weak, &result);
            bool fits = (by >= 0) == (why == NULL) && (by >= 0 || weak != MODEL_NOT_SEQ_CST);
            printf("  %-4s %-17s %-7s -> %-7s  ", label->name, access_names[label->access],
                   order_names[label->order], to[weak][label->access]);
            if (by >= 0)
                printf("noticed by %s: %s%s\n", scenarios[by]->name, result.reason,
                       why ? ". WRONG: listed as not needed" : "");
            else
                printf("%s%s\n", why ? "not needed: " : "not noticed. WRONG: not listed",
                       why ? why : "");
            fflush(stdout);
            if (by >= 0 && traces)
                model_print_trace(stdout);
            good = good && fits;
        }
    }
    return good;
}

int main(int argc, char **argv) {
    verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
    traces = argc > 1 && strcmp(argv[1], "-t") == 0;
    thorough = getenv("CABLEWAY_SOAK") != NULL;
    only = (verbose || traces) && argc > 2 ? argv[2] : NULL;
    add(model_ring_scenarios);
    add(model_sleep_scenarios);
    add(model_lease_scenarios);
    add(model_transit_scenarios);
    add(model_room_scenarios);
    add(model_floor_scenarios);
    add(model_fence_scenarios);
    add(model_directory_scenarios);
    add(model_barrier_scenarios);
    add(model_queue_scenarios);
    add(model_order_scenarios);
    add(model_dispatch_scenarios);
    add(model_groups_scenarios);
    add(model_trace_scenarios);
    bool good = run_litmus();
    good = run_baseline() && good;
    good = (only || met_all()) && good;
    good = good && run_weakened();
    printf("%s\n", good ? "model: ok" : "model: FAILED");
    return good ? 0 : 1;
}
