"""Tensors as arguments of tasks, again and again: what both ends remember of them is what they are now.

On the double stand-ins of PyTorch (standins/), on real GPUs PyTorch.
"""

from __future__ import annotations

import borrowed_support
import cuda_support
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(
    cuda_support.REAL, reason="the double alone: its faults and streams of its own"
)


gpus, program = borrowed_support.gpus, borrowed_support.program


@on_the_double
@pytest.mark.parametrize("has_quick", [True, False])
def test_work_in_the_callers_current_stream_comes_first(program, has_quick):
    """Also where PyTorch has no quick way to ask for it."""
    program(
        "torch",
        f"""
HAS_QUICK = {has_quick}
"""
        """
def all_are(t, value):
    return bool((host(t).view("u1") == value).all())
if __name__ == "__main__":
    t, driver, streams = new(np.ones(100_000, "f4")), Driver(), [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    if not HAS_QUICK:
        del library._C
    faults = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"]).fakecuda_faults
    with Pool(devices="cuda:0") as pool:
        assert pool.apply(total, (t,)) == 100_000
        faults(b"fill=delay:200000")
        for value, stream in zip((3, 5, 7), (streams[0], streams[1], streams[0])):
            library.set_stream(stream.value)
            driver.call("cuMemsetD8Async", ctypes.c_uint64(t.data_ptr()), value, ctypes.c_size_t(400_000), stream)
            assert pool.starmap(all_are, [(t, value)] * 2) == [True] * 2
        faults(b"")
""",
    )


@on_the_double
def test_what_is_complete_asks_the_gpu_for_nothing(program):
    program(
        "torch",
        """
def where(t):
    return tuple(t.shape), t.data_ptr() > 0
if __name__ == "__main__":
    ts = [new(np.ones(100 + i, "f4")) for i in range(3)]
    with Pool(devices="cuda:0") as pool:
        assert pool.map(where, ts * 3) == [((100 + i,), True) for i in range(3)] * 3
""",
        CABLEWAY_FAKECUDA_FAULTS="cuStreamWriteValue64@1+=INVALID_VALUE,cuStreamWaitValue64@1+=INVALID_VALUE,"
        "cuEventRecord@1+=INVALID_VALUE,cuLaunchHostFunc@1+=INVALID_VALUE",
    )


def test_parts_of_one_form_are_told_apart(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    t = new(np.arange(1000, dtype="f4"))
    parts = [t[i : i + 10] for i in range(0, 1000, 50)]
    with Pool(devices="cuda:0") as pool:
        for _ in range(2):
            assert pool.map(total, parts) == [float(range(i, i + 10)[0] * 10 + 45) for i in range(0, 1000, 50)]
        pool.map(mark, parts[3:4])
        assert host(t)[150] == 7 and host(t)[100] == 100 and pool.lent()[1] == 0
""",
    )


def test_each_task_gets_a_tensor_of_its_own(program):
    program(
        "torch",
        """
kept = []
def change(t):
    kept.append(t)
    before = t.requires_grad
    t.requires_grad_()
    return before, len({id(x) for x in kept}), total(t.detach())
def look():
    return [total(t.detach()) for t in kept]
if __name__ == "__main__":
    t = new(np.ones(1000, "f4"))
    with Pool(devices="cuda:0") as pool:
        assert pool.map(change, [t] * 4) == [(False, i + 1, 1000) for i in range(4)]
        del t
        pool.apply(exec, ("import __mp_main__; del __mp_main__.kept[1:]",))
        assert pool.apply(look) == [1000]
        assert len(suballocation._kept) == 1                # the first one still has it
        pool.apply(exec, ("import __mp_main__; __mp_main__.kept.clear()",))
        gone()
""",
    )


@on_the_double
def test_a_dtype_that_numpy_lacks_and_that_has_no_bytes_of_its_own_is_pickled(program):
    program(
        "torch",
        """
from cableway._transport import external_arrays as foreign
if __name__ == "__main__":
    import torch
    t = new(np.ones(1000, "f4"))
    assert foreign._see_torch(torch, t) is not None
    t.dtype = torch.dtype("quint8", 1)
    assert foreign._see_torch(torch, t) is None
    del t
    gone()
""",
    )
