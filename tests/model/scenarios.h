/* The scenarios, a file a protocol. Each list ends with a NULL name. */
#ifndef CW_TESTS_MODEL_SCENARIOS_H
#define CW_TESTS_MODEL_SCENARIOS_H

#include "model.h"

extern const struct model_scenario model_ring_scenarios[];
extern const struct model_scenario model_sleep_scenarios[];
extern const struct model_scenario model_lease_scenarios[];
extern const struct model_scenario model_transit_scenarios[];
extern const struct model_scenario model_room_scenarios[];
extern const struct model_scenario model_floor_scenarios[];
extern const struct model_scenario model_directory_scenarios[];
extern const struct model_scenario model_fence_scenarios[];
extern const struct model_scenario model_order_scenarios[];
extern const struct model_scenario model_barrier_scenarios[];
extern const struct model_scenario model_queue_scenarios[];
extern const struct model_scenario model_dispatch_scenarios[];
extern const struct model_scenario model_groups_scenarios[];
extern const struct model_scenario model_trace_scenarios[];

/* Litmus tests: does the memory model itself allow what it should and nothing else? */
struct model_litmus {
    struct model_scenario scenario; /* fails in an execution with the outcome that the name tells */
    bool allowed;                   /* by the language: then the search must find it */
};
extern const struct model_litmus model_litmus[];

#endif
