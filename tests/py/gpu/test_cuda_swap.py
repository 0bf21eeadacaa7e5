"""Trees in GPU memory that were got with swappable=True: versions follow each other at the same addresses."""

from __future__ import annotations

import cuda_programs
import cuda_support
import pytest

cuda_support.require()

gpus = cuda_support.for_module()
program = cuda_programs.program
on_double = pytest.mark.skipif(cuda_support.REAL, reason="faults are the test double's")

STATE = """
SIZE = 1 << 20
def state(value):
    return {"w": cw.full(SIZE, value, "u1", device="cuda:0"), "v": cw.full(SIZE, value + 100, "u1", device="cuda:0")}
def swappable(value=1, **options):
    "A tree, and the addresses of its two leaves."
    cw.put("m", state(value), keep=True, **options).close()
    tree = cw.get("m", swappable=True)
    return tree, low(tree["w"]), low(tree["w"]) + tree["v"]._offset
def holds(tree, value):
    "By cableway's copies, and by the driver's from the address itself."
    copied = (tree["w"].to("cpu").numpy() == value).all() and (tree["v"].to("cpu").numpy() == value + 100).all()
    stream = Stream()
    fetched = stream.fetch(low(tree["w"]))
    stream.finish()
    return bool(copied and (fetched == value).all())
def refused(kind, word, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert word in str(error), error
        return
    raise AssertionError("it was done")
def fault(text):
    assert cuda.fakecuda_faults(text.encode()) == 0
def gone(version, seconds=20):
    "Whether nobody holds that version any more, in a while."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try: cw.get("m", version=version).close()
        except cw.NameNotFound: return True
        time.sleep(0.01)
    return False
"""


def test_a_swap_shows_the_new_values_at_the_old_pointers(program):
    program(
        STATE
        + """
tree, w, v = swappable(1)
old = tree.version
assert holds(tree, 1)
for value in (2, 3):
    new = cw.put("m", state(value), keep=True).version
    assert tree.swap() and tree.version == new
    assert low(tree["w"]) == w and holds(tree, value)
assert not tree.swap() and gone(old)
"""
    )


def test_work_that_was_begun_is_done_on_the_old_version(program):
    program(
        STATE
        + """
import threading
tree, w, v = swappable(1)
stream = Stream()
stream.hold("go")
fetched = stream.fetch(w)
cw.put("m", state(2), keep=True).close()
swapping = threading.Thread(target=tree.swap)
swapping.start()
swapping.join(0.2)
assert swapping.is_alive()                       # it waits for a stream that it never heard of
touch("go")
swapping.join()
assert (fetched == 1).all() and holds(tree, 2)
"""
    )


def test_an_open_section_refuses_it_and_its_end_allows_it(program):
    program(
        STATE
        + """
tree, w, v = swappable(1)
stream = Stream()
cw.put("m", state(2), keep=True).close()
with tree["w"].reading(stream.handle.value):
    for change in (tree.swap, tree.unmap, tree.park):
        refused(cw.Error, "are in use (1 times)", change)
    fetched = stream.fetch(w)
assert tree.swap()
assert (fetched == 1).all() and holds(tree, 2)
"""
    )


def test_a_stream_under_capture_refuses_it_and_captures_on(program):
    program(
        STATE
        + """
tree, w, v = swappable(1)
stream, graph = Stream(), ctypes.c_void_p()
cw.put("m", state(2), keep=True).close()
call("cuStreamBeginCapture_v2", stream.handle, 2)
for change in (tree.swap, tree.unmap, tree.park):
    refused(ValueError, "is being captured", change, stream=stream.handle.value)
call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
assert holds(tree, 1) and tree.state == "mapped"
assert tree.swap(stream=stream.handle.value) and holds(tree, 2)
"""
    )


def test_a_small_tree_swaps_parks_and_heeds_a_capture(program):
    program(
        STATE
        + """
def small(value):
    return {"w": np.full(1000, value, "u1"), "v": np.full(10, value, "f4")}

keeper = cw.put("x", np.ones(100), device="cuda:0")   # in the memory that small arrays share
cw.put("s", small(1), device="cuda:0")
tree = cw.get("s", swappable=True)
w, v, at = tree["w"], tree["v"], low(tree["w"])
stream, graph = Stream(), ctypes.c_void_p()
cw.put("s", small(2), device="cuda:0", keep=True).close()
call("cuStreamBeginCapture_v2", stream.handle, 2)
refused(ValueError, "is being captured", tree.swap, stream=stream.handle.value)
call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
for value in range(2, 30):
    cw.put("s", small(value), device="cuda:0").close()
    assert tree.swap() and low(w) == at
    fetched = stream.fetch(at)
    stream.finish()
    assert (fetched == value).all() and (v.to("cpu").numpy() == value).all()
    tree.park()
    tree.unpark()
    assert (w.to("cpu").numpy() == value).all() and low(w) == at
"""
    )


def test_a_capture_that_nobody_told_of_refuses_it_too(program):
    program(
        STATE
        + """
tree, w, v = swappable(1)
stream, graph = Stream(), ctypes.c_void_p()
cw.put("m", state(2), keep=True).close()
call("cuStreamBeginCapture_v2", stream.handle, 2)
refused(ValueError, "is being captured", tree.swap)
cuda.cuStreamEndCapture(stream.handle, ctypes.byref(graph))  # a wait for the GPU may have ended it
assert tree.state == "mapped" and holds(tree, 1)
assert tree.swap() and holds(tree, 2)
"""
    )


def test_a_captured_graph_replays_over_the_new_values(program):
    if not cuda_support.REAL:
        pytest.skip("the test double has no graphs")
    program(
        STATE
        + """
tree, w, v = swappable(1)
stream, graph, ready = Stream(), ctypes.c_void_p(), ctypes.c_void_p()
out = cw.empty(1000, "u1", device="cuda:0")
at = low(out)
call("cuStreamBeginCapture_v2", stream.handle, 2)
call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(at), ctypes.c_uint64(w), ctypes.c_size_t(1000), stream.handle)
call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
def replayed():
    call("cuGraphLaunch", ready, stream.handle)
    stream.finish()
    return set(out.to("cpu").numpy().tolist())
assert replayed() == {1}
for value in (2, 3):
    cw.put("m", state(value), keep=True).close()
    assert tree.swap() and replayed() == {value}
tree.unmap(); tree.map()
assert replayed() == {3}
tree.park(); tree.unpark()
assert replayed() == {3}
"""
    )


def test_unmapped_memory_is_back_where_it_was(program):
    program(
        STATE
        + """
tree, w, v = swappable(5)
a = tree["w"]
tree.unmap()
assert tree.state == "unmapped"
for use in (lambda: a.to("cpu"), lambda: a.__cuda_array_interface__, a.__dlpack__, a.handle, a.reading(1).__enter__):
    refused(ValueError, "the tree is unmapped: map it first", use)
tree.map()
assert low(a) == w and holds(tree, 5)
"""
    )


def test_memory_of_the_old_version_is_free_after_a_swap(program):
    program(
        """
def unused():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value
child = other('''
for value in (1, 2):
    cw.put("m", {"w": cw.full(64 << 20, value, "u1", device="cuda:0")}, keep=True).close()
    say()
    assert sys.stdin.readline() == "on\\\\n"
''')
heard(child)
tree = cw.get("m", swappable=True)
stream = Stream()
child.stdin.write("on\\n"); child.stdin.flush()
heard(child)
child.stdin.write("on\\n"); child.stdin.flush()
ended(child)                                     # what it kept free goes with it
two = unused()
assert tree.swap()
end = time.monotonic() + 20
while unused() - two < 60 << 20:
    assert time.monotonic() < end, unused() - two
    time.sleep(0.01)
"""
    )


def test_a_parked_tree_takes_no_gpu_memory_and_comes_back(program):
    program(
        STATE
        + """
tree, w, v = swappable(7)
a, old = tree["w"], tree.version
cw.remove("m")
tree.park()
assert tree.state == "parked" and list(tree) == ["w", "v"] and tree.version == old
assert gone(old)
refused(ValueError, "the tree is parked: unpark it first", a.to, "cpu")
refused(ValueError, "the tree is parked: unpark it", tree.map)
refused(cw.Stale, "belongs to this process alone", cw.put, "n", tree)
tree.unpark()
assert tree.state == "mapped" and low(a) == w and holds(tree, 7)
copy = cw.put("n", {path: tree[path] for path in tree})
assert (cw.get("n")["w"].to("cpu").numpy() == 7).all()
"""
    )


def test_what_another_process_still_has_is_shared_again_after_parking(program):
    program(
        STATE
        + """
tree, w, v = swappable(7)
keeper, old = cw.get("m"), tree.version
tree.park()
tree.unpark()
assert holds(tree, 7) and tree.version == old
again = cw.put("n", tree)                        # the same memory, by another name
assert (again["w"].to("cpu").numpy() == 7).all()
"""
    )


@on_double
@pytest.mark.parametrize(
    "step", ["cuMemUnmap@1", "cuMemMap@1", "cuMemSetAccess@1", "cuMemImportFromShareableHandle@1"]
)
def test_a_failure_in_the_midst_leaves_the_old_version(program, step):
    program(
        STATE
        + f"""
tree, w, v = swappable(1)
old = tree.version
cw.put("m", state(2), keep=True).close()
fault("{step}=OUT_OF_MEMORY")
refused(cw.LimitExceeded, "CUDA_ERROR_OUT_OF_MEMORY", tree.swap)
assert tree.state == "mapped" and tree.version == old and holds(tree, 1)
fault("")
assert tree.swap() and low(tree["w"]) == w and holds(tree, 2)
"""
    )


@on_double
@pytest.mark.parametrize(
    ("step", "left"),
    [("cuMemUnmap@2", 1), ("cuMemMap@2", 1), ("cuMemSetAccess@2", 1), ("cuMemMap@2+", 0)],
)
def test_of_several_parts_all_have_one_version_or_nothing(program, step, left):
    program(
        f"""
def state(value):
    return {{f"w{{i}}": cw.full(1 << 20, value, "u1", device=f"cuda:{{i}}") for i in (0, 1)}}
cw.put("m", state(1), keep=True).close()
tree = cw.get("m", swappable=True)
lows = [low(tree[path]) for path in tree]
def values(): return {{int(x) for path in tree for x in np.unique(tree[path].to("cpu").numpy())}}
cw.put("m", state(2), keep=True).close()
assert cuda.fakecuda_faults(b"{step}=OUT_OF_MEMORY") == 0
try:
    tree.swap()
    raise AssertionError("it was done")
except cw.LimitExceeded as error:
    assert ("the tree is unmapped" in str(error)) == (not {left}), error
assert tree.state == ("mapped" if {left} else "unmapped")
assert cuda.fakecuda_faults(b"") == 0
tree.map()
assert values() == {{1}} and tree.swap() and values() == {{2}} and lows == [low(tree[path]) for path in tree]
"""
    )


@on_double
def test_where_nothing_can_be_mapped_the_tree_is_unmapped_and_says_so(program):
    program(
        STATE
        + """
tree, w, v = swappable(1)
cw.put("m", state(2), keep=True).close()
fault("cuMemMap=OUT_OF_MEMORY")
refused(cw.LimitExceeded, "the tree is unmapped", tree.swap)
assert tree.state == "unmapped"
refused(cw.LimitExceeded, "CUDA_ERROR_OUT_OF_MEMORY", tree.map)
refused(ValueError, "unmapped: map it first", tree["w"].to, "cpu")
fault("")
tree.map()
assert low(tree["w"]) == w and holds(tree, 1)
assert tree.swap() and holds(tree, 2)
"""
    )


@on_double
@pytest.mark.parametrize(
    "step", ["cuMemUnmap@1", "cuMemMap@1", "cuMemSetAccess@1", "cuCtxSynchronize@1"]
)
def test_a_swapper_killed_in_the_midst_harms_nobody(program, step):
    program(
        f"STATE = {STATE!r}\nexec(STATE)\n"
        + f"""
tree, w, v = swappable(1)
old = tree.version
child = other(STATE + '''
tree = cw.get("m", swappable=True)
say()
sys.stdin.readline()
fault("{step}=kill")
tree.swap()
''')
heard(child)
new = cw.put("m", state(2), keep=True).version
child.stdin.write("on\\n"); child.stdin.flush()
assert child.wait(60) == -signal.SIGKILL
assert holds(tree, 1) and tree.swap() and holds(tree, 2) and gone(old)
"""
    )


# ---- with the libraries that capture graphs


GRAPH = (
    STATE
    + """
tree, w, v = swappable(1)
"""
)


def test_a_graph_of_pytorch_replays_over_the_new_values(program):
    pytest.importorskip("torch")
    if not cuda_support.REAL:
        pytest.skip("PyTorch needs a real GPU")
    program(
        GRAPH
        + """
import torch
tensors = tree.torch()
out = torch.empty(SIZE, dtype=torch.int64, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    out.copy_(tensors["w"]); out.add_(tensors["v"])
side.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out.copy_(tensors["w"]); out.add_(tensors["v"])
    refused(ValueError, "is being captured", tree.unmap)
for value in (2, 3):
    cw.put("m", state(value), keep=True).close()
    assert tree.swap()
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 2 * value + 100).all()), (value, out[:4])
tree.unmap(); tree.map(); graph.replay(); torch.cuda.synchronize()
assert bool((out == 106).all())
tree.park(); tree.unpark(); graph.replay(); torch.cuda.synchronize()
assert bool((out == 106).all()) and tensors["w"].data_ptr() == w
"""
    )


def test_a_graph_of_cupy_replays_over_the_new_values(program):
    pytest.importorskip("cupy")
    if not cuda_support.REAL:
        pytest.skip("CuPy needs a real GPU")
    program(
        GRAPH
        + """
import cupy
out = cupy.zeros(SIZE, "u1")
source = cupy.from_dlpack(tree["w"])
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    cupy.add(source, 1, out=out)                 # its kernel is compiled before
    stream.synchronize()
    stream.begin_capture()
    cupy.add(source, 1, out=out)
    graph = stream.end_capture()
for value in (2, 3):
    cw.put("m", state(value), keep=True).close()
    assert tree.swap()
    graph.launch(stream)
    stream.synchronize()
    assert bool((out == value + 1).all())
"""
    )
