"""`Pool.spmd` when workers die, tasks take too long, or a signal's handler raises: everybody is told, and the Pool goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import pytest
import spmd_tasks as ranks
from pool_support import LONG, in_thread, joined
from waiting import eventually

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")

TIMES = 20


@pytest.mark.parametrize("wait", [False, True])
def test_a_rank_that_is_killed_breaks_its_gang_alone(wait: bool) -> None:
    with cw.Pool(4) as pool:
        for i in range(TIMES):
            rank, flags = i % 3, cw.zeros(2, "i8")
            beside = pool.map_async(abs, range(50), chunksize=1)
            with pytest.raises(cw.WorkerDied, match="SIGKILL.* while it ran .*dies_in") as raised:
                pool.spmd(ranks.dies_in, rank, flags, wait, n=3)
            assert raised.value.index == rank
            assert raised.value.rank == rank  # type: ignore[attr-defined]
            assert beside.get(LONG) == list(range(50))
        assert len({one[0] for one in pool.spmd(ranks.who)}) == 4
    assert not cw.names(".group/spmd")


def test_retries_are_not_for_ranks() -> None:
    flags = cw.zeros(2, "i8")
    with cw.Pool(3, retries=5) as pool:
        with pytest.raises(cw.WorkerDied):
            pool.spmd(ranks.dies_in, 1, flags, True)
        assert len(pool.spmd(ranks.who)) == 3


def test_survivors_may_go_on_for_themselves() -> None:
    flags = cw.zeros(3, "i8")
    with cw.Pool(3) as pool:
        with pytest.raises(cw.WorkerDied):
            pool.spmd(ranks.reforms, flags)
        assert flags.numpy()[:2].tolist() == [2, 2]


def test_a_worker_that_dies_while_it_waits_for_others() -> None:
    for _ in range(TIMES):
        flags = cw.zeros(2, "i8")
        with cw.Pool(2) as pool:
            busy = pool.apply_async(ranks.hold, (flags, 1))
            assert eventually(lambda flags=flags: bool(flags.numpy()[1]))
            (waits,) = {process.pid for process in pool._pool} - {int(flags.numpy()[1])}
            thread, said = in_thread(pool.spmd, ranks.who)
            assert eventually(lambda pool=pool: len(pool._engine.dispatch.running()) == 2)
            os.kill(waits, signal.SIGKILL)
            joined(thread)
            assert isinstance(said[0], cw.WorkerDied)
            assert said[0].pid == waits
            flags.numpy()[0] = 1
            assert busy.get(LONG)
            assert len({one[0] for one in pool.spmd(ranks.who)}) == 2


def test_deaths_at_any_moment() -> None:
    """The moment is chosen by chance: while ranks are sent, wait, join, compute, or answer."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    with cw.Pool(3) as pool:
        died = 0
        for _ in range(5 * TIMES):
            victims = [process.pid for process in pool._pool]
            thread, said = in_thread(pool.spmd, ranks.who)
            time.sleep(chance.random() * 0.006)
            with contextlib.suppress(ProcessLookupError):  # the last one's successor
                os.kill(chance.choice(victims), signal.SIGKILL)
            joined(thread)
            died += isinstance(said[0], cw.WorkerDied)
            assert isinstance(said[0], (cw.WorkerDied, list)), said
            assert eventually(lambda: len(pool._pool) == 3)
        assert len({one[0] for one in pool.spmd(ranks.who)}) == 3
    assert died


def test_a_rank_that_takes_too_long() -> None:
    with cw.Pool(2, task_timeout=0.5) as pool:
        with pytest.raises(cw.TaskTimeout):
            pool.spmd(ranks.slow_barrier)
        assert len(pool.spmd(ranks.who)) == 2


class Interruption(Exception):
    pass


def test_a_handler_that_raises_while_it_waits() -> None:
    def raise_it(*_: Any) -> None:
        raise Interruption

    before = signal.signal(signal.SIGUSR1, raise_it)
    main = threading.main_thread().ident
    assert main is not None
    try:
        with cw.Pool(3) as pool:
            for _ in range(TIMES):
                flags = cw.zeros(4, "i8")
                pool.apply_async(ranks.hold, (flags, 1))

                def interrupt(flags: cw.Array = flags) -> None:
                    if eventually(lambda: len(pool._engine.dispatch.running()) == 3):
                        signal.pthread_kill(main, signal.SIGUSR1)

                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(Interruption):
                    pool.spmd(ranks.rank_holds, flags)
                joined(thread)
                assert len(pool.spmd(ranks.who, n=2)) == 2, "those that waited are free again"
                flags.numpy()[0] = 1
                assert not flags.numpy()[2:].any(), "no rank was called"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_cannot_wait_for_what_it_interrupts() -> None:
    said: list[BaseException] = []
    flags = cw.zeros(3, "i8")
    with cw.Pool(2) as pool:

        def again(*_: Any) -> None:
            try:
                pool.spmd(ranks.who)
            except RuntimeError as error:
                said.append(error)
            flags.numpy()[0] = 1

        before = signal.signal(signal.SIGUSR1, again)
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            if eventually(lambda: bool(flags.numpy()[1:].all())):
                signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            assert pool.spmd(ranks.rank_holds, flags) == [0, 1]
        finally:
            signal.signal(signal.SIGUSR1, before)
            joined(thread)
        assert "in spmd() already" in str(said[0])
