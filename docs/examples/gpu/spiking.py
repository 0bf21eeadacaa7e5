"""Two populations of a spiking network on two GPUs, which exchange their spikes at each step.

    python spiking.py [--neurons N] [--steps N] [--devices cuda:0 cuda:1] [--cpu]

Leaky integrate-and-fire neurons. Each population is a task of a Pool, on a GPU of its own; it writes the spikes of a step into
an array of its own that the other one reads. Of each array there are two, for even and odd steps, so that one can be
written while the other is read. What the GPUs wait for is put in order by `writing` and `reading`; a queue says that the work of a step has been
submitted, so that the CPU never waits for a GPU. Then the same network exchanges its spikes by a `cw.Group`, in host memory.

All quantities are integers (the sums over weights are integers below 2^24 in floats, and exact in any order), so the network on two
GPUs must give the very spikes that it gives on one GPU and on the CPU: that is checked.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

import cableway as cw

THRESHOLD, RESET = 1 << 14, 0
LEAK_SHIFT = 4  # a sixteenth of the potential is lost at each step
DRIVE = 1500  # the strongest constant input of a neuron
WEIGHT = 60  # the strongest synapse
CONNECTED = 0.1  # of all pairs

Arrays = Any  # of NumPy or CuPy


class Population:
    """One population: its neurons, and the synapses that end at them.

    Args:
        xp: numpy or cupy.
        which: 0 or 1.
        neurons: how many; both populations have as many.
    """

    def __init__(self, xp: Any, which: int, neurons: int) -> None:
        random = np.random.default_rng(which)
        self.xp = xp
        self.potential = xp.asarray(random.integers(0, THRESHOLD, neurons).astype("i4"))
        self.drive = xp.asarray(random.integers(0, DRIVE, neurons).astype("i4"))
        self.from_own = xp.asarray(self._synapses(random, neurons, -WEIGHT, WEIGHT))
        self.from_other = xp.asarray(self._synapses(random, neurons, 0, WEIGHT))

    @staticmethod
    def _synapses(random: np.random.Generator, neurons: int, low: int, high: int) -> Arrays:
        weights = random.integers(low, high, (neurons, neurons)).astype("f4")
        weights[random.random((neurons, neurons), "f4") >= CONNECTED] = 0
        return weights

    def step(self, own: Arrays, other: Arrays) -> Arrays:
        """From the spikes of the step before (0.0 or 1.0 for each neuron) those of this one."""
        arriving = (self.from_own @ own + self.from_other @ other).astype("i4")
        potential = self.potential - (self.potential >> LEAK_SHIFT) + self.drive + arriving
        spikes = potential >= THRESHOLD
        self.potential = self.xp.where(spikes, RESET, potential)
        return spikes.astype("f4")


def library(on_cpu: bool) -> tuple[Any, AbstractContextManager[Any]]:
    """numpy or cupy, and the stream to work on."""
    if on_cpu:
        return np, nullcontext()
    import cupy

    return cupy, cupy.cuda.Stream(non_blocking=True)


def population(which: int, neurons: int, steps: int, on_cpu: bool, told: Any, tell: Any) -> Arrays:
    """A task: one population, the other one being simulated at the same time by another task.

    told and tell: queues from and to the other one. Returns how many neurons have fired at each step, and who fired last.
    """
    xp, stream = library(on_cpu)
    device = "cpu" if on_cpu else "cuda:0"  # the worker's own
    mine = [cw.zeros(neurons, "f4", device=device) for _ in range(2)]
    tell.put(mine)
    others = told.get()
    counts = xp.zeros(steps, "i4")
    arriving = cw.zeros(neurons, "f4", device=device)
    with stream:
        state = Population(xp, which, neurons)
        own, other = xp.zeros(neurons, "f4"), xp.asarray(arriving)
        for step in range(steps):
            before, now = others[(step + 1) % 2], mine[step % 2]
            # After the other one's write of the step before; given to the stream, which goes on.
            arriving.copy_from(before, stream=None if on_cpu else stream)
            own = state.step(own, other)
            counts[step] = own.sum()
            with now.writing():  # after the other one has read what it held two steps ago
                xp.asarray(now)[:] = own
            tell.put(step)  # submitted: the other one's stream may wait for it
            if told.get() != step:
                raise RuntimeError("the populations are out of step")
        found = (
            np.asarray(counts if on_cpu else counts.get()),
            np.asarray(own if on_cpu else own.get()),
        )
    tell.put("done")  # the other one may still read what is ours
    told.get()
    return found


def member(group: cw.Group, neurons: int, steps: int, on_cpu: bool) -> Arrays:
    """The same by a Group: each member has one population, and the spikes of a step go to all members in host memory."""
    xp, stream = library(on_cpu)
    spikes = np.zeros((2, neurons), "f4")
    counts = xp.zeros(steps, "i4")
    with stream:
        state = Population(xp, group.rank, neurons)
        own = xp.zeros(neurons, "f4")
        for step in range(steps):
            own = state.step(own, xp.asarray(spikes[1 - group.rank]))
            counts[step] = own.sum()
            group.Allgather(own if on_cpu else own.get(), out=spikes)
        return np.asarray(counts if on_cpu else counts.get()), spikes[group.rank].copy()


def together(neurons: int, steps: int, on_cpu: bool) -> list[Arrays]:
    """Both populations one after the other in one process on one GPU: what to compare with."""
    xp, stream = library(on_cpu)
    with stream:
        states = [Population(xp, which, neurons) for which in range(2)]
        spikes = [xp.zeros(neurons, "f4") for _ in range(2)]
        counts = xp.zeros((2, steps), "i4")
        for step in range(steps):
            spikes = [states[0].step(spikes[0], spikes[1]), states[1].step(spikes[1], spikes[0])]
            counts[0, step], counts[1, step] = spikes[0].sum(), spikes[1].sum()
        if not on_cpu:
            counts, spikes = counts.get(), [s.get() for s in spikes]
    return [(counts[which], spikes[which]) for which in range(2)]


def same(found: list[Arrays], expected: list[Arrays]) -> bool:
    """Whether the spikes are the same."""
    return all(
        np.array_equal(a, b)
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def main() -> None:
    """Simulates, times, checks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--neurons", type=int, default=4000, help="of each population")
    options.add_argument("--steps", type=int, default=500)
    options.add_argument("--devices", nargs=2, default=["cuda:0", "cuda:1"])
    options.add_argument("--cpu", action="store_true", help="two processes on the CPU")
    given = options.parse_args()

    with cw.Pool(2) if given.cpu else cw.Pool(devices=given.devices) as pool:
        for _ in range(2):  # the first round loads the libraries
            to_first, to_second = cw.SimpleQueue(), cw.SimpleQueue()
            begin = time.perf_counter()
            found = pool.starmap(
                population,
                [
                    (0, given.neurons, given.steps, given.cpu, to_first, to_second),
                    (1, given.neurons, given.steps, given.cpu, to_second, to_first),
                ],
                chunksize=1,
            )
            seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        if not same(pool.spmd(member, given.neurons, given.steps, given.cpu), found):
            raise SystemExit("WRONG: the members of a Group give other spikes")
        group_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        if not given.cpu:
            one = pool.apply(together, (given.neurons, given.steps, False))
            one_seconds = time.perf_counter() - begin
            if not same(found, one):
                raise SystemExit("WRONG: two GPUs give other spikes than one")
    begin = time.perf_counter()
    expected = together(given.neurons, given.steps, True)
    cpu_seconds = time.perf_counter() - begin
    if not same(found, expected):
        raise SystemExit("WRONG: other spikes than on the CPU")

    fired = sum(int(counts.sum()) for counts, _ in found)
    if fired < given.steps:
        raise SystemExit(f"WRONG: {fired} spikes in {given.steps} steps, the network is silent")
    print(
        f"2 x {given.neurons:,} neurons, {given.steps} steps, {fired:,} spikes, the same in every way of running it"
    )
    print(f"two processes {seconds:.3f} s ({seconds / given.steps * 1e6:.0f} us a step)", end="")
    print(f", by a Group {group_seconds:.3f} s", end="")
    if not given.cpu:
        print(f", one GPU {one_seconds:.3f} s", end="")
    print(f", NumPy in one process {cpu_seconds:.3f} s")


if __name__ == "__main__":
    main()
