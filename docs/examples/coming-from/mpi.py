"""mpi4py: the ranks of one node share arrays; MPI carries handles. `mpirun -n 4 python mpi.py`.

Any transport of mpi4py will do: a bcast of the array itself (a pickle of some 200 bytes, which every rank opens), or of a handle for
so many ranks. The root may let go at once. Buffers of cableway are buffers of MPI, too: upper-case calls take them without a copy.
"""

import numpy as np
from mpi4py import MPI

import cableway as cw

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

# The array itself: one pickle, which all ranks open. The root's own is gone before they do.
made = cw.asarray(np.arange(8.0)) if rank == 0 else None
shared = comm.bcast(made)
del made
assert shared.tolist() == list(range(8))

# Each rank writes its place in the one array; all see all.
comm.Barrier()
shared[rank] = 100.0 + rank
comm.Barrier()
assert shared[:size].tolist() == [100.0 + r for r in range(size)]

# The same by a handle, whose number of openers is known: it needs no pickle, and ends exactly with the last opener.
handle = cw.to_handle(cw.full(size, -1), openers=size) if rank == 0 else None
parts = cw.from_handle(comm.bcast(handle))
parts[rank] = rank
comm.Barrier()
assert parts.tolist() == list(range(size))

# A collective on our memory: MPI reads and writes it in place.
total = cw.asarray(np.full(1000, rank + 1.0))
comm.Allreduce(MPI.IN_PLACE, total.numpy())
assert total[0] == size * (size + 1) / 2

comm.Barrier()
if rank == 0:
    print(f"{size} ranks: {shared[:size].tolist()}, sum {total[0]}")
