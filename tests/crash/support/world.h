/*
 * World: a broker of its own for one test, in a folder of its own, seen from outside through its
 * monitor page and /proc, as `cableway status` sees it.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_WORLD_H
#define CW_TESTS_CRASH_SUPPORT_WORLD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/cableway.h"
#include "shm/session/monitor.h"

struct world {
    char folder[128]; /* what CABLEWAY_DIR is while the world stands */
    pid_t broker;     /* our child; 0 when it is gone */
    struct cw_root *root;
};

/* Path of the broker's program: $CABLEWAY_BROKER, else beside the build folder of this test. */
const char *world_program(void);
/* Makes a folder, sets CABLEWAY_DIR, starts `cablewayd --foreground` and maps its monitor page.
 * Limits come from the environment. Ends the test program when that fails. */
void world_start(struct world *world);
/* Only the folder and CABLEWAY_DIR. */
void world_folder(struct world *world);
/* Starts a broker in the world's folder and maps its monitor page. */
void world_start_broker(struct world *world);
/* Maps the monitor page of whatever broker runs in the folder (one that a client started). */
bool world_attach(struct world *world);
/* SIGKILL, and reaped. The monitor page stays mapped. */
void world_kill(struct world *world);
/* SIGTERM; the broker must end by itself within 10 s with status 0. Removes the folder. */
void world_stop(struct world *world);

uint64_t world_gauge(const struct world *world, enum cw_gauge which);
uint64_t world_counter(const struct world *world, enum cw_counter which);
/* Open descriptors of the broker. */
int world_fds(const struct world *world);
/* Is the broker still our running child? */
bool world_alive(struct world *world);
/* All gauges and the descriptors, as one line on stdout. */
void world_print(const struct world *world);
/* What each descriptor of the broker leads to: for who looks for one that was left. */
void world_print_fds(const struct world *world);

/*
 * Looks at condition about once a millisecond until it holds; false after so many looks. Counting
 * looks and not time keeps the limit meaningful on a machine that is starved.
 */
#define WORLD_UNTIL(condition, looks)                                                              \
    ({                                                                                             \
        int looks_left = (looks);                                                                  \
        while (!(condition) && looks_left-- > 0)                                                   \
            world_pause();                                                                         \
        looks_left >= 0;                                                                           \
    })
void world_pause(void);

/* Whether the broker has no client, name or slab any more, within so many looks; if not, prints. */
bool world_holds_nothing(const struct world *world, int looks);

/* A layout of n elements of type u8, n in *shape. */
cw_layout world_bytes(const int64_t *shape);

#endif
