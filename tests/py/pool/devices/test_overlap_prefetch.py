"""What `_pool.worker.prefetch` brings for tasks that a worker may take, keeps, and drops: with a plane of one task after the other."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import cuda_support
import pytest

cuda_support.require()


gpus = cuda_support.for_module()


LIBRARY = """
import threading, time, numpy as np, cableway as cw
from cableway._transport import table
from cableway._transport import message as wire
from cableway._pool.worker.prefetch import Prefetch
from cableway._pool.worker.task_arrays import Arguments
from cableway._transport.blocks import BlockStore, open_silently
from cableway._pool.task_arrays import TaskEncoder
from cableway._pool.worker.staging import Device
KIB = 1024
class End:
    "The plane: tasks that are ready, by place."
    def __init__(self): self.ready, self.count = {}, 1
    def fellows(self): return self.count
    def peek(self, nth):
        found = list(self.ready.items())[nth:nth + 1]
        return found[0] if found else None
class Slow(Device):
    "Copies wait until they may."
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.may, self.begun, self.brought = threading.Semaphore(0), threading.Semaphore(0), []
    def bring(self, entry, block=None):
        self.begun.release()
        assert self.may.acquire(timeout=30)
        self.brought.append(entry.nbytes)
        return super().bring(entry, block)
def eventually(seen):
    end = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)
store = BlockStore(1 << 20)
encoder = TaskEncoder(store, 4000, transit=False, groups={0: 0, 1: 1})
kept = []
def message(*args):
    kept.append(encoder.encode(1, wire.APPLY, b"", (args,)))
    return kept[-1].data
end = End()
def values_of(message):
    return [x.to("cpu").numpy() if isinstance(x, cw.Array) else x for x in wire.loads(message)[0]]
"""


@pytest.fixture
def program(script: Callable[..., object]) -> Callable[[str], object]:
    """Runs a text with LIBRARY before it."""
    return lambda text: script(LIBRARY + textwrap.dedent(text))


def test_what_was_brought_is_used_and_all_else_is_copied_when_it_is_taken(program):
    program("""
        device = Slow("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        first, second = message(cw.In(np.full(9, 1.0))), message(cw.In(np.full(9, 2.0)), cw.In(np.full(7, 3)), "text")
        device.may.release()
        found = task.read(first, 1)
        assert (values_of(found)[0] == 1).all()
        end.ready[2] = second
        device.may.release(2)
        eventually(lambda: len(device.brought) == 3)
        eventually(lambda: not ahead._copying)
        task.returned()
        del end.ready[2]
        one, two, text = values_of(task.read(second, 2))   # nothing is copied any more: it may not
        assert (one == 2).all() and (two == 3).all() and text == "text"
        assert ahead._kept == {} and ahead._bytes == 0
        third = message(cw.In(np.full(5, 4.0)))
        task.returned()
        device.may.release()
        assert (values_of(task.read(third, 3))[0] == 4).all()
        assert device.brought == [72, 72, 56, 40]
    """)


def test_the_parent_hears_that_a_block_may_be_used_again(program):
    program("""
        from cableway._transport.blocks import LENT, RETURNED
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        task.read(message(cw.In(np.zeros(3))), 1)
        end.ready[2] = message(cw.In(np.zeros(3)))
        eventually(lambda: 2 in ahead._kept and ahead._kept[2].leases)
        assert [parcel.blocks[0].state for parcel in kept] == [RETURNED, LENT]
        task.returned()
        task.read(end.ready.pop(2), 2)
        assert kept[1].blocks[0].state == RETURNED
    """)


def test_a_task_that_is_taken_in_the_midst_of_a_copy_waits_for_it_and_copies_the_rest(program):
    program("""
        device = Slow("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        device.may.release()
        task.read(message(cw.In(np.zeros(3))), 1)
        end.ready[2] = message(cw.In(np.full(4, 2.0)), cw.In(np.full(5, 3.0)))
        device.begun.acquire(), device.begun.acquire()
        task.returned()
        found, was = [], ahead._round
        taker = threading.Thread(target=lambda: found.append(task.read(end.ready.pop(2), 2)))
        taker.start()
        while ahead._round == was: time.sleep(0.001)
        device.may.release()
        device.may.release()
        taker.join(30)
        assert [v.tolist() for v in values_of(found[0])] == [[2.0] * 4, [3.0] * 5]
        assert device.brought == [24, 32, 40], device.brought
    """)


def test_what_others_take_is_dropped(program):
    program("""
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        task.read(message(cw.In(np.zeros(3))), 1)
        end.ready.update({place: message(cw.In(np.zeros(100))) for place in (2, 3, 4)})
        eventually(lambda: sorted(ahead._kept) == [2, 3])   # two tasks ahead
        del end.ready[2]
        eventually(lambda: sorted(ahead._kept) == [3, 4])
        assert ahead._bytes == 1600
        end.ready.clear()
        eventually(lambda: not ahead._kept)
        end.ready[5] = message(cw.In(np.zeros(100)))
        eventually(lambda: 5 in ahead._kept and ahead._kept[5].leases)
        task.returned()                                     # and then it has nothing to do
        eventually(lambda: not ahead._kept)
        assert ahead._bytes == 0
    """)


def test_the_limit_holds_and_memory_is_given_back_when_it_is_needed(program):
    program("""
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1000)
        task = Arguments(device, ahead)
        task.read(message(cw.In(np.zeros(3))), 1)
        end.ready.update({2: message(cw.In(np.zeros(60)), cw.In(np.zeros(70)), cw.In(np.zeros(40))),
                          3: message(cw.In(np.full(60, 1.0)), cw.In(np.zeros(25)))})
        eventually(lambda: 3 in ahead._kept and 1 in ahead._kept[3].leases)
        assert sorted(ahead._kept[2].leases) == [0, 2] and sorted(ahead._kept[3].leases) == [1]
        assert ahead._bytes == 480 + 320 + 200
        task.returned()
        assert len(values_of(task.read(end.ready.pop(2), 2))) == 3
        eventually(lambda: 0 in ahead._kept[3].leases)      # there is room now
        ahead.give_way()
        assert ahead._bytes == 0
        task.returned()
        assert (values_of(task.read(end.ready.pop(3), 3))[0] == 1).all()
    """)


def test_what_cannot_be_brought_is_told_to_who_takes_it(program):
    program("""
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 30)
        task = Arguments(device, ahead)
        task.read(message(cw.In(np.zeros(3))), 1)
        two = message(cw.In(np.zeros(8)), cw.In(np.zeros(9)))
        block = kept[-1].blocks[0]
        block.close()                                       # its sender lets go
        def gone():
            time.sleep(0.01)
            try:
                open_silently(block.handle, 64)
            except cw.Stale:
                return True
        eventually(gone)                                    # and the broker has heard of it
        end.ready[2] = two
        eventually(lambda: 2 in ahead._kept and 1 in ahead._kept[2].leases)
        assert ahead._kept[2].leases[0] is None and ahead._bytes == 72
        task.returned()
        try:
            task.read(end.ready.pop(2), 2)
            raise SystemExit("it was read")
        except cw.Stale:
            pass
        task.returned()
        found = task.read(message(cw.In(np.full(3, 5.0))), 3)
        assert (values_of(found)[0] == 5).all()
    """)


@cuda_support.second_gpu
def test_arrays_on_the_own_gpu_are_taken_as_they_are_and_others_are_copied(program):
    program("""
        device = Slow("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        near = cw.asarray(np.arange(6.0).reshape(2, 3), device="cuda:0")
        far = cw.asarray(np.asfortranarray(np.arange(6.0).reshape(2, 3)), device="cuda:1")
        host = cw.asarray(np.arange(4.0))
        def seen(found):
            x, y, z, h = wire.loads(found)[0]
            assert x.__cuda_array_interface__["data"] == near[1].__cuda_array_interface__["data"]
            assert (y.device, z.device, h.device) == ("cuda:0",) * 3
            assert y.strides == far.strides and y.flags.f_contiguous
            for got, want in ((y, far), (z, far[:, 1:]), (h, host)):
                assert (got.to("cpu").numpy() == want.to("cpu").numpy()).all()
        args = near[1], far, far[:, 1:], cw.In(host)
        device.may.release(3)
        seen(task.read(message(*args), 1))
        end.ready[2] = message(*args)
        device.may.release(3)
        eventually(lambda: 2 in ahead._kept and len(ahead._kept[2].leases) == 3)
        task.returned()
        seen(task.read(end.ready.pop(2), 2))
        assert len(device.brought) == 6
    """)


def test_a_table_that_lies_in_a_block_is_read_there(program):
    program("""
        from cableway._transport.blocks import LENT, RETURNED
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        task.read(message(cw.In(np.zeros(3))), 1)
        many = [np.full(5, float(i)) for i in range(100)]
        end.ready[2] = message(*map(cw.In, many))
        assert len(end.ready[2]) < 200
        eventually(lambda: 2 in ahead._kept and len(ahead._kept[2].leases) == 100)
        assert kept[-1].blocks[-1].state == LENT
        task.returned()
        found = values_of(task.read(end.ready.pop(2), 2))
        assert all((a == b).all() for a, b in zip(found, many))
    """)


def test_nobody_looks_ahead_where_nothing_is_copied(program):
    program("""
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        near = cw.zeros(5, device="cuda:0")
        for place in range(40):
            task.read(message(near, 3, np.zeros(2)), place)
            task.returned()
        assert ahead._thread is None and not ahead._running
    """)


def test_nobody_looks_ahead_while_there_are_several_workers(program):
    program("""
        device = Device("cuda:0", 0)
        ahead = Prefetch(end, device, 1 << 20)
        task = Arguments(device, ahead)
        end.count = 2                                      # the Pool was resized
        task.read(message(cw.In(np.zeros(3))), 1)
        assert ahead._thread is None
        task.returned()
        end.count = 1                                      # and back
        end.ready[3] = message(cw.In(np.zeros(3)))
        task.read(message(cw.In(np.zeros(3))), 2)
        eventually(lambda: 3 in ahead._kept and ahead._kept[3].leases)
        task.returned()
    """)
