/*
 * A broker of one's own for a benchmark, in a fresh folder, so that nothing of the user's is
 * touched; ended and removed by scratch_close().
 */
#ifndef CW_BENCH_SCRATCH_H
#define CW_BENCH_SCRATCH_H

#include "ipc/cableway.h"

struct scratch {
    char folder[64];
    cw_client *client;
};

/* Makes the folder and connects, which starts the broker. Ends the program on failure. */
void scratch_open(struct scratch *out);
/* Stops the broker and removes the folder. */
void scratch_close(struct scratch *scratch);

#endif
