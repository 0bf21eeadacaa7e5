/*
 * What the parts of the walk share: see walk.c.
 */
#ifndef CW_TESTS_FAULTS_WALK_H
#define CW_TESTS_FAULTS_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

/* A call said that it failed: prints it. It must have a sentence and a code that says what failed.
 */
void walk_told(int line, const char *call, int code);
/* What may not be: prints it, and ends this process with 1. */
_Noreturn void walk_wrong(int line, const char *what, int code);

/* The call succeeds, or fails once, tells so, and succeeds when it is made again. Gives its result.
 */
#define STEP(call)                                                                                 \
    ({                                                                                             \
        int code_ = (int)(call);                                                                   \
        if (code_ < 0) {                                                                           \
            walk_told(__LINE__, #call, code_);                                                     \
            code_ = (int)(call);                                                                   \
        }                                                                                          \
        if (code_ < 0)                                                                             \
            walk_wrong(__LINE__, "failed again: " #call, code_);                                   \
        code_;                                                                                     \
    })
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            walk_wrong(__LINE__, #condition, 0);                                                   \
    } while (0)

cw_client *walk_connect(void);
/* An array of so many bytes, filled with a byte. */
cw_array *walk_array(cw_client *client, int64_t bytes, int filling, uint32_t flags);
bool walk_filled(cw_array *array, int filling);
void walk_layout(cw_layout *layout, int64_t *shape);

/* The parts; each leaves nothing behind. */
void walk_names(cw_client *client);
void walk_many(cw_client *client);
void walk_trees(cw_client *client);
void walk_handles(cw_client *client);
void walk_copies(cw_client *client);
void walk_children(cw_client *client);
void walk_waits(cw_client *client);
void walk_queues(cw_client *client);
void walk_gpu(cw_client *client);
void walk_pools(void);

#endif
