/*
 * Jobs: copies that cableway-mover does for this process, since it cannot reach the memory: on a
 * GPU that its mask hides, in a forked child, or where the user wishes it so
 * (CABLEWAY_ROUTE=mover).
 *
 * Both ends are blocks of registered slabs. The caller holds leases on both until the call returns;
 * the broker holds both for the job as well (broker/roles/copy_jobs.h), so that the mover touches
 * nothing that could be carved anew, also when this process dies meanwhile. The mover knows no
 * order (order.h): the caller has waited for earlier work, and keeps later work away until the call
 * returns. If the mover dies the broker has the job done again; if the broker dies the call says
 * so, and the target has some of the bytes.
 */
#ifndef CW_IPC_ARRAY_MOVER_COPY_H
#define CW_IPC_ARRAY_MOVER_COPY_H

#include <stdint.h>

#include "ipc/cableway.h"

/*
 * Has bytes of one array copied to another, and blocks until they are. Other processes then know
 * both blocks. 0; -EINTR: a signal came before the mover took it, later ones end nothing; -ESTALE,
 * -EDQUOT, -ENODEV (no mover, or what it says), -ECONNRESET.
 */
int cw_job_copy(cw_array *target, uint64_t target_bytes, cw_array *source, uint64_t source_bytes,
                uint64_t size_bytes);

/* What CABLEWAY_ROUTE says. -EINVAL: something else. */
enum cw_wish { CW_WISH_NONE, CW_WISH_STAGED, CW_WISH_MOVER };
int cw_route_wish(enum cw_wish *out);

/* Copies between two arrays by any route but the mover, without looking at their order, and blocks:
 * the mover's own work (copy_bytes.c). */
int cw_copy_unordered(cw_array *target, cw_array *source, uint64_t size_bytes);

#endif
