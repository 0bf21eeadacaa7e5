"""Memory that a Pool keeps idle: it has a bound, and is given up before a process of the Pool is refused any.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Script

from cableway._core import idle_memory
from cableway._transport.blocks import RETURNED, BlockStore

LIMITED = """
    import os
    os.environ["CABLEWAY_MAX_BYTES"] = str(64 << 20)
    import numpy as np, cableway as cw
    if __name__ == "__main__":
        with cw.Pool(1) as pool:
            assert pool.apply(len, (np.ones(30 << 20, "u1"),)) == 30 << 20
            idle = sum(block.capacity for block in pool._engine._store._lent)
            idle += pool._engine._store._free_bytes
            assert idle >= 30 << 20
            {then}
            print("had")
        pool.join()
"""


@pytest.mark.parametrize(
    "then",
    [
        'assert cw.put("large", np.ones(40 << 20, "u1")).nbytes == 40 << 20',
        'assert pool.apply(len, (np.ones(40 << 20, "u1"),)) == 40 << 20',
    ],
    ids=["put", "task"],
)
def test_idle_memory_is_given_up_before_this_process_is_refused(script: Script, then: str) -> None:
    assert script(LIMITED.format(then=then)).stdout == "had\n"


def test_what_is_kept_idle_has_a_bound_in_bytes() -> None:
    store = BlockStore(1 << 20)
    large = store.take(3 << 20)
    store.untake([large])
    assert store._free == [] and store._free_bytes == 0
    small = [store.take(300 << 10) for _ in range(5)]
    store.untake(small)
    assert sum(block.capacity for block in store._free) == store._free_bytes <= 1 << 20
    assert store._free
    store.close()


def test_a_store_that_has_ended_keeps_nothing_that_comes_back_late() -> None:
    store = BlockStore(1 << 20)
    block = store.take(300 << 10)
    store.close()
    store.untake([block])
    assert store._free == [] and block.array is None


def test_what_has_come_back_counts_as_idle() -> None:
    store = BlockStore(8 << 20)
    block, gone = store.take(300 << 10), store.take(300 << 10)
    for lent in (block, gone):
        lent.lend()
    store.lent([block, gone], None)
    block._word[0] = RETURNED
    assert store.give_up() and block.array is None and gone.array is not None
    assert not store.give_up()
    store.close()


SHARED = """
    import os, sys, time
    if "LARGE" not in os.environ:
        os.environ["CABLEWAY_MAX_BYTES"] = str(64 << 20)
    import json, multiprocessing, subprocess
    import numpy as np, cableway as cw
    from cableway._core import idle_memory
    from cableway._core import programs
    MIB = 1 << 20

    def ones(n):
        return np.ones(n, "u1")

    def more(array):
        return array + 1

    def nap_while_there(path):
        while os.path.exists(path):
            time.sleep(0.001)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
"""

OF_WORKERS = """
        with cw.Pool(1, context=context) as pool:
            assert pool.apply(ones, (30 * MIB,)).nbytes == 30 * MIB  # it sleeps, and keeps them
            assert cw.put("large", np.ones(40 * MIB, "u1")).nbytes == 40 * MIB
            assert pool.apply(len, (b"x",)) == 1
        print("had")
"""

OF_THE_PARENT = """
        with cw.Pool(1, context=context) as pool:
            assert pool.apply(len, (np.ones(30 * MIB, "u1"),)) == 30 * MIB
            assert pool.apply(ones, (40 * MIB,)).nbytes == 40 * MIB
        print("had")
"""

OF_EACH_OTHER = """
        with cw.Pool(2, context=context) as pool:
            for _ in range(20):
                for n in 4, 12, 20:
                    assert pool.apply(len, (np.ones(n * MIB, "u1"),)) == n * MIB
                    assert pool.apply(ones, (n * MIB,)).nbytes == n * MIB
                got = pool.map(more, [np.ones(30_000) for _ in range(40)])
                assert len(got) == 40 and all(array[-1] == 2 for array in got)
                del got
        print("had")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("text", [OF_WORKERS, OF_THE_PARENT, OF_EACH_OTHER])
def test_idle_memory_of_a_pool_s_other_processes_refuses_nobody(
    script: Script, text: str, method: str
) -> None:
    assert script(SHARED + text, method).stdout == "had\n"


BUSY = """
        gate = sys.argv[2]
        with cw.Pool(1, context=context) as pool:
            assert pool.apply(ones, (30 * MIB,)).nbytes == 30 * MIB
            open(gate, "w").close()
            busy = pool.apply_async(nap_while_there, (gate,))
            try:
                cw.put("large", np.ones(40 * MIB, "u1"))
                print("had")
            except cw.LimitExceeded as error:
                print("max_bytes" in str(error))
            os.unlink(gate)
            busy.get()
            assert cw.put("large", np.ones(40 * MIB, "u1")).nbytes == 40 * MIB
            print("had")
"""


def test_who_is_busy_holds_up_nobody_who_wants_memory(script: Script, tmp_path: Path) -> None:
    """Its task does not end before the other is refused; afterwards it gives up what it keeps."""
    assert script(SHARED + BUSY, "fork", str(tmp_path / "gate")).stdout == "True\nhad\n"


STOPPED = """
        import signal
        with cw.Pool(1, context=context) as pool:
            assert pool.apply(ones, (30 * MIB,)).nbytes == 30 * MIB
            pid = pool.apply(os.getpid)
            os.kill(pid, signal.SIGSTOP)
            try:
                cw.put("large", np.ones(40 * MIB, "u1"))
                print("had")
            except cw.LimitExceeded as error:
                print("max_bytes" in str(error))
            os.kill(pid, getattr(signal, sys.argv[2]))
            while True:  # what a dead one kept comes back when the broker has seen its death
                try:
                    assert cw.put("large", np.ones(40 * MIB, "u1")).nbytes == 40 * MIB
                    break
                except cw.LimitExceeded:
                    pass
            assert pool.apply(len, (b"x",)) == 1
            print("had")
"""


@pytest.mark.parametrize("then", ["SIGCONT", "SIGKILL"])
def test_who_is_stopped_or_dies_holds_up_nobody_who_wants_memory(script: Script, then: str) -> None:
    assert script(SHARED + STOPPED, "fork", then).stdout == "True\nhad\n"


END = """
        with cw.Pool(1, context=context) as pool:
            assert pool.apply(ones, (300 * MIB,)).nbytes == 300 * MIB
            assert pool.apply(len, (np.ones(300 * MIB, "u1"),)) == 300 * MIB
        pool.join()
        command = [programs.path("cableway"), "status", "--json"]
        while True:  # the broker sees the workers' death
            told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            if int(told["gauges"]["bytes"]) <= idle_memory._KEPT_AFTER_BYTES + 16 * MIB:
                break
        os.kill(cw.connect().broker_pid, 15)
        print("gone")
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_was_made_for_a_pool_goes_with_it(script: Script, tmp_path: Path, method: str) -> None:
    own = {
        **os.environ,
        "LARGE": "1",
        "CABLEWAY_DIR": str(tmp_path / "d"),
    }  # a broker without that limit
    (tmp_path / "d").mkdir(mode=0o700)
    assert script(SHARED + END, method, env=own).stdout.endswith("gone\n")


class _End:
    """An end of a task queue whose other processes never answer, or say that they have given something up."""

    def __init__(self, missing: int, some: bool) -> None:
        self.asked = 0
        self._answer = missing, some

    def ask(self) -> int:
        self.asked += 1
        return self.asked

    def wanted(self) -> None:
        return None

    def unheeded(self, number: int) -> tuple[int, bool]:
        assert number == self.asked
        return self._answer


@pytest.mark.parametrize(("missing", "some"), [(0, False), (0, True), (1, False), (1, True)])
def test_who_asks_for_memory_tries_again_after_each_round_and_ends(
    monkeypatch: pytest.MonkeyPatch, missing: int, some: bool
) -> None:
    end = _End(missing, some)
    monkeypatch.setattr(idle_memory, "kept", [])
    monkeypatch.setattr(idle_memory, "_ends", [end])
    monkeypatch.setattr(idle_memory, "trim", lambda keep_bytes: (0, 0))
    tries = sum(1 for _ in idle_memory.given_up(ask_others=True))
    assert 1 <= end.asked == tries
    if not missing and not some:
        assert end.asked <= idle_memory._ROUNDS
    before = end.asked
    assert sum(1 for _ in idle_memory.given_up(ask_others=False)) == 0 and end.asked == before
