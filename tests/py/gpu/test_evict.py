"""Evictable arrays leave a full GPU, by last use, and come back; and `prefetch`, ahead of use. Runs in `make test-more`."""

from __future__ import annotations

import cuda_support
import pytest
from mover_support import world

cuda_support.require()
double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double's memory and faults")
two = cuda_support.second_gpu

# A GPU of 256 MiB, or a broker that gives no more: four arrays of 48 MiB are there at once, and room for small ones.
SMALL: dict[str, object] = {"CABLEWAY_MAX_GPU_BYTES": 256 << 20}
TOOLS = """
N = (48 << 20) // 8
def make(seed, device="cuda:0", size=N):
    w = cw.empty(size, device=device, evictable=True)
    w.copy_from(random(size, seed))
    return w
def holds(w, seed):
    return (w.to("cpu").numpy() == random(w.size, seed)).all()
"""


def test_arrays_leave_a_full_gpu_in_the_order_of_their_last_use(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
all = [make(seed) for seed in range(5)]
assert [w.away for w in all] == [False] * 5 and all[0].evictable
all[0].wait()  # used now
all.append(make(5))
assert [w.away for w in all] == [False, True, False, False, False, False], [w.away for w in all]
all[2].copy_from(random(N, 2))
all.append(make(6))
assert [i for i, w in enumerate(all) if w.away] == [1, 3]
assert all[1].device == "cuda:0" and all[1].device_uuid == all[0].device_uuid and all[1].shape == (N,)
for again in range(2):
    for seed, w in enumerate(all):
        assert holds(w, seed), seed
        assert not w.away and sum(w.away for w in all) == 2
all[3].close(); all[4].close()
assert holds(all[1], 1) and holds(all[2], 2)
for seed in (0, 1, 2, 5, 6):
    assert holds(all[seed], seed)
assert not any(w.away for w in all if not w.closed)  # there is room for five
"""
        )


@double
def test_memory_that_is_really_full(tmp_path):
    with world(tmp_path / "b", memory_mib=256) as run:
        run(
            TOOLS
            + """
all = [make(seed) for seed in range(12)]
for seed, w in enumerate(all):
    assert holds(w, seed), seed
big = cw.zeros(3 * N, device="cuda:0")  # three must go, at least
assert sum(not w.away for w in all) <= 2
for seed, w in enumerate(all):
    assert holds(w, seed), seed
away = [w.away for w in all]
try: cw.empty((257 << 20) // 8, device="cuda:0")
except cw.LimitExceeded: pass
else: raise AssertionError
assert [w.away for w in all] == away  # none leaves for what can never be there
small = [make(seed, size=1000) for seed in range(500)]
for seed in range(500):
    assert holds(small[seed], seed)
"""
        )


def test_what_stays_for_further_openers_of_a_pickle_goes_first(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:  # transit_seconds is 300
        run(
            TOOLS
            + """
import pickle
kept = make(0)
for seed in range(1, 4):
    w = cw.zeros(N, device="cuda:0")
    assert pickle.loads(pickle.dumps(w)).shape == (N,)  # opened: it stays for others who may come
    del w
big = cw.zeros(3 * N, device="cuda:0")
assert not kept.away and holds(kept, 0)
"""
        )


def test_none_leaves_for_more_than_the_brokers_limit(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
all = [make(seed) for seed in range(4)]
try: cw.empty((257 << 20) // 8, device="cuda:0")
except cw.LimitExceeded as error: assert "max_gpu_bytes" in str(error), error
else: raise AssertionError
assert not any(w.away for w in all)
"""
        )


def test_what_is_used_or_known_to_others_stays(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
named, sent, lent, inside, tensor = [make(seed) for seed in range(5)]
cw.put("named", named)
handle = sent.handle()
address = lent.__cuda_array_interface__["data"][0]
capsule = tensor.__dlpack__()
with inside.reading(1):
    try: make(5)
    except cw.LimitExceeded: pass
    else: raise AssertionError
    assert not any(w.away for w in (named, sent, lent, inside, tensor))
del capsule  # nobody has the tensor any more
inside.wait()  # used later than that
more = make(6)
assert tensor.away and not any(w.away for w in (named, sent, lent, inside))
assert lent.__cuda_array_interface__["data"][0] == address
assert holds(more, 6)
for seed, w in enumerate((named, sent, lent, inside)):
    assert holds(w, seed) and not w.away
assert holds(tensor, 4) and more.away
"""
        )


def test_parts_and_the_order_of_streams(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
w = make(0)
part = w[1000:2000]
others = [make(seed) for seed in range(1, 6)]
assert w.away and part.away
assert (part.to("cpu").numpy() == random(N, 0)[1000:2000]).all() and not w.away
others.append(make(7)); others.append(make(8)); others[0].wait(); others[1].wait(); others[2].wait(); others[3].wait(); others[4].wait()
assert w.away
part[...] = 7.0
x = random(N, 0); x[1000:2000] = 7
assert (w.to("cpu").numpy() == x).all()
others[0].wait(), others[1].wait(), others[2].wait(), others[3].wait(), others[4].wait(), others[5].wait()
assert w.away
with w.writing(1):  # comes back, and stays inside
    assert not w.away
    at = w.__cuda_array_interface__["data"][0]
    others += [make(9) for _ in range(9)]
    assert not w.away and at == w.__cuda_array_interface__["data"][0]
assert (w.to("cpu").numpy() == x).all()
"""
        )


def test_an_end_without_a_begin_is_refused_though_the_array_is_away(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
from cableway._core.library import check, ffi, lib
w = make(0)
others = [make(seed) for seed in range(1, 6)]
pointer, stream = w._open_lease().pointer, ffi.cast("void *", 1)
for ended in (
    lambda: lib.cw_array_reading_end(pointer, stream),
    lambda: lib.cw_array_writing_end(pointer, stream, 0),
):
    assert w.away
    try: check(ended())
    except ValueError as error: assert "begin one first" in str(error), error
    else: raise AssertionError
assert w.away and holds(w, 0)
"""
        )


def test_an_array_that_is_away_is_put_behind_a_stream(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
from cableway._core.library import ffi, lib
w = make(0)
others = [make(seed) for seed in range(1, 6)]
assert w.away
assert lib.cw_array_behind(w._open_lease().pointer, ffi.cast("void *", 1)) == 0
assert not w.away and holds(w, 0)
"""
        )


@double
def test_a_stream_at_work_keeps_an_array(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
import ctypes
cuda = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"])
all = [make(seed) for seed in range(5)]
context, stream, go = ctypes.c_void_p(), ctypes.c_void_p(), threading.Event()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait())
with all[0].reading(stream.value):
    assert cuda.cuLaunchHostFunc(stream, hold, None) == 0
for w in all[1:]: w.wait()
more = make(5)
assert not all[0].away and all[1].away
go.set()
assert cuda.cuStreamSynchronize(stream) == 0
more = [more, make(6)]
assert all[0].away and holds(all[0], 0) and holds(all[1], 1)
"""
        )


def test_several_arrays_at_once_come_back_and_may_leave_again(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
all = [make(seed) for seed in range(8)]
assert [w.away for w in all] == [True] * 3 + [False] * 5
a, b = all[0], all[1]
with cw.work(1, reads=[a, a[10:20]], writes=[b]):
    assert not a.away and not b.away
    others = [make(seed) for seed in range(3)]
    assert not a.away and not b.away
assert holds(a, 0) and holds(b, 1)
for w in others: w.close()
pairs = [(all[2], a), (all[3][: N // 2], b[: N // 2])]
cw.copy(pairs)
assert (all[2].to("cpu").numpy() == random(N, 0)).all() and (all[3].to("cpu").numpy()[: N // 2] == random(N, 1)[: N // 2]).all()
more = [make(seed) for seed in range(20, 25)]
assert all[2].away and all[3].away and a.away and b.away  # nothing keeps them here
assert holds(a, 0) and holds(all[2], 0)
"""
        )


def test_threads_use_arrays_while_others_leave(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
N = (24 << 20) // 8
all, faults = [make(seed, size=N) for seed in range(14)], []
def use(seed):
    random_ = np.random.default_rng(seed)
    try:
        for _ in range(12):
            i = int(random_.integers(len(all)))
            assert holds(all[i], i), i
    except BaseException as error:
        faults.append(error)
        raise
threads = [threading.Thread(target=use, args=(seed,)) for seed in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not faults, faults
"""
        )


def test_no_host_memory_left_is_told_and_loses_nothing(tmp_path):
    with world(tmp_path / "b", **SMALL, CABLEWAY_MAX_BYTES=32 << 20) as run:
        run(
            TOOLS
            + """
all = [cw.asarray(np.full(N, seed, "f8"), device="cuda:0", evictable=True) for seed in range(5)]
try: cw.empty(N, device="cuda:0")
except cw.LimitExceeded as error: assert "max_bytes" in str(error), error
else: raise AssertionError
assert not any(w.away for w in all)
"""
        )


@double
@pytest.mark.parametrize("moment", ["copy@1", "cuMemcpyDtoHAsync@1", "cuMemHostRegister@1"])
def test_a_process_killed_while_an_array_leaves(tmp_path, moment):
    with world(tmp_path / "b", **SMALL) as run:
        done = run(
            TOOLS
            + f"""
import ctypes
keep = cw.put("keep", cw.asarray(random(1000), device="cuda:0"))
all = [make(seed) for seed in range(5)]
ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"]).fakecuda_faults(b"{moment}=kill")
make(5)
""",
            check=False,
        )
        assert done.returncode == -9, done.stderr
        run(
            TOOLS
            + """
assert (cw.get("keep").to("cpu").numpy() == random(1000)).all()
all = [make(seed) for seed in range(7)]  # the memory of the dead is there again
assert all[0].away and holds(all[0], 0)
"""
        )


def test_evictable_arrays_are_on_gpus(tmp_path):
    with world(tmp_path / "b") as run:
        run("""
            for wrong in (lambda: cw.empty(3, evictable=True), lambda: cw.asarray([1, 2], evictable=True)):
                try: wrong()
                except ValueError as error: assert "GPU" in str(error), error
                else: raise AssertionError
            assert not cw.zeros(3).evictable and not cw.zeros(3, device="cuda:0").away
            w = cw.full((2, 3), 5, device="cuda:0", evictable=True)
            assert w.evictable and (w.to("cpu").numpy() == 5).all() and not w.copy().evictable
            f = cw.asarray(np.asfortranarray(random((3, 4))), device="cuda:0", evictable=True)
            assert f.strides == (8, 24) and (f.to("cpu").numpy() == random((3, 4))).all()
            z = cw.zeros(0, device="cuda:0", evictable=True)
            assert z.to("cpu").numpy().shape == (0,)
        """)


@two
def test_prefetch_brings_an_array_ahead_of_its_use(tmp_path):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
x = random(N)
a = cw.asarray(x)
near = a.prefetch("cuda:0")
a.close()  # its memory is kept until the copy is there
assert near.device == "cuda:0" and (near.to("cpu").numpy() == x).all()
far = near.prefetch("cuda:1")
near.close()
far.wait()
assert far.device == "cuda:1" and (far.to("cpu").numpy() == x).all()
assert far.prefetch("cuda:1") is far and far.prefetch() is far
back = far.prefetch("cpu")
assert back.device == "cpu" and (back.numpy() == x).all()
far.close()
all = [make(seed) for seed in range(6)]
assert all[0].away
assert all[0].prefetch() is all[0] and not all[0].away and all[1].away
assert holds(all[0], 0) and holds(all[1], 1)
try: all[0].prefetch("cuda:77")
except cw.DeviceError: pass
else: raise AssertionError
"""
        )


@double
def test_prefetch_does_not_wait(tmp_path):
    with world(tmp_path / "b") as run:
        run("""
            import ctypes
            double = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"])
            x = random(1_000_000)
            a = cw.asarray(x)
            a.to("cuda:0")  # registers its memory
            go = os.path.join(os.environ["CABLEWAY_DIR"], "go")
            double.fakecuda_faults(f"copy@1=until:{go}".encode())
            near = a.prefetch("cuda:0")
            try: near.wait(timeout=0)
            except cw.Timeout: pass
            else: raise AssertionError("it was there at once")
            open(go, "w").close()
            with near.reading(1): pass
            assert (near.to("cpu").numpy() == x).all()
        """)


def test_an_array_that_is_given_to_a_library_does_not_leave_between_the_look_and_the_capsule(
    tmp_path,
):
    with world(tmp_path / "b", **SMALL) as run:
        run(
            TOOLS
            + """
from cableway._array import dlpack
w, look, others, left = make(0), dlpack.has_passed, [], []
def slow(lease):
    done = look(lease)
    others.extend(make(seed) for seed in range(1, 6))
    left.append(w.away)
    return done
dlpack.has_passed = slow
capsule = w.__dlpack__(stream=1)
assert left == [False], left
dlpack.has_passed = look
del capsule
others[:] = [make(seed) for seed in range(6)]
assert w.away and holds(w, 0)
"""
        )
