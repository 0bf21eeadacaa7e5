/*
 * What the mover does with one job. No state but the client's mappings and CUDA's contexts.
 */
#ifndef CW_BROKER_MOVER_COPY_H
#define CW_BROKER_MOVER_COPY_H

#include <stdbool.h>

#include "ipc/cableway.h"
#include "ipc/wire.h"

/* Does a job, whole, and lets go of both blocks. 0, or a negative errno with its sentence. */
int cw_mover_copy(cw_client *client, const struct cw_copy *copy);
/* Makes memory on a GPU that the asker opens by *out. 0, -ENODEV (there is no such GPU), -EDQUOT.
 */
int cw_mover_make(cw_client *client, const struct cw_make *make, struct cw_made *out);
/* No job has come for a while: unmaps memory of GPUs that no job uses, and host memory that was
 * given up (what was not stays: to register it with CUDA takes some 10 ms for 64 MiB), and gives up
 * slabs of its own that are free. */
void cw_mover_rest(cw_client *client);
/* Do all contexts of this process still work? */
bool cw_mover_is_sound(void);

#endif
