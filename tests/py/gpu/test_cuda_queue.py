"""GPU arrays of PyTorch and CuPy through a Queue, and by `cableway.torch.share()`: by handle, without a copy or with one.

On the double with stand-ins of the libraries (standins/), on real GPUs with the libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import cuda_support
import device_pools
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(
    cuda_support.REAL, reason="the double alone: its faults and streams of its own"
)
gpus = cuda_support.for_module(devices=2)

HEAD = """
from cableway._queue import items
spawn, N = mp.get_context("spawn"), 100_000
def new(values):
    if LIBRARY == "cupy": return library.array(values)
    return library.tensor(values, dtype=library.float32, device="cuda") if hasattr(library, "__version__") else library.tensor(values)
def host(x):
    return cw.asarray(x).to("cpu").numpy()
def sent():
    "What went without a copy, and what by one."
    return items._tensors.lender.shared, items._tensors.lender.copied
def mark_and_send_on(source, target, at):
    while (x := source.get()) is not None:
        cw.asarray(x)[at : at + 1] = np.full(1, 70 + at, "f4")
        target.put((x, sent()))
        del x
def started(function, *arguments):
    child = spawn.Process(target=function, args=arguments, daemon=True)
    child.start()
    return child
"""


def run(script: Callable[..., object], name: str, text: str, **env: str) -> None:
    """Runs a text after what device_pools and HEAD have, with the library named."""
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    begin = f"import {name} as library\nLIBRARY = {name!r}\n"
    env = {**device_pools.environment_for(name), **env}
    device_pools.run(script, begin + HEAD + "\n".join(line[indent:] for line in lines), env=env)


@pytest.fixture
def program(script: Callable[..., object]) -> Callable[..., None]:
    """run() for these tests."""
    return functools.partial(run, script)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_librarys_own_array_is_copied_once_and_what_came_so_is_sent_on_without_a_copy(
    program, library
):
    program(
        library,
        """
        if __name__ == "__main__":
            t, (first, second, back) = new(np.arange(N, dtype="f4")), (cw.Queue() for _ in range(3))
            children = [started(mark_and_send_on, first, second, 1), started(taken_apart, second, back)]
            for i in range(3):                                # alone, then remembered by both ends
                first.put(t)
                got, shared, copied = back.get(timeout=60)
                assert type(got) is type(t) and (shared, copied) == (i, 0)  # before it was sent on
                assert host(got)[:3].tolist() == [0, 71, 72]  # the second process marked what the first one got
                assert host(t)[:3].tolist() == [0, 1, 2]      # and not the caller's
            assert sent() == (0, 3)
            back.put([got, 5])                                # what came from another process goes on, from here too
            again, five = back.get(timeout=60)
            cw.asarray(again)[:1] = np.full(1, 9, "f4")
            assert host(got)[0] == 9 and five == 5 and sent() == (1, 3)
            first.put(None); second.put(None)
            for child in children: child.join()
        """.replace(
            "        if __name__",
            """        def taken_apart(source, target):
            while (found := source.get()) is not None:
                x, (shared, copied) = found
                cw.asarray(x)[2:3] = np.full(1, 72, "f4")
                target.put((x, shared, copied))
                del x, found
        if __name__""",
            1,
        ),
    )


def test_a_tensor_in_memory_of_ours_goes_without_a_copy(program):
    program(
        "torch",
        """
        if __name__ == "__main__":
            w = cw.zeros(N, "f4", device="cuda:0")
            t, there, back = w.torch(), cw.Queue(), cw.Queue()
            child = started(mark_and_send_on, there, back, 1)
            for part, begin in ((t, 0), (t[10:50], 10), (t, 0)):
                there.put(part)
                got, (shared, copied) = back.get(timeout=60)
                assert w.to("cpu").numpy()[begin + 1] == 71
                cw.asarray(got)[:1] = np.full(1, 7, "f4")
                assert w.to("cpu").numpy()[begin] == 7 and copied == 0
            assert sent() == (3, 0)
            there.put(None); child.join()
        """,
    )


def test_a_tensor_of_a_swappable_tree_goes_by_a_copy(program):
    """Its address means another version after a swap: who has got it keeps the values that were sent."""
    program(
        "torch",
        """
        if __name__ == "__main__":
            cw.put("m", {"w": np.full(1 << 20, 1, "f4")}, device="cuda:0")
            tree, queue = cw.get("m", swappable=True), cw.Queue()
            t = tree["w"].torch()
            queue.put(t)
            cw.put("m", {"w": np.full(1 << 20, 2, "f4")}, device="cuda:0")
            assert tree.swap()
            queue.put(t)
            first, second = queue.get(timeout=60), queue.get(timeout=60)
            assert (host(first) == 1).all() and (host(second) == 2).all() and (host(t) == 2).all()
            assert sent() == (0, 2)
        """,
    )


@pytest.mark.skipif(not cuda_support.REAL, reason="the stand-in has no allocator of its own")
def test_what_pytorch_made_in_memory_of_ours_goes_without_a_copy(program):
    program(
        "torch",
        """
        if __name__ == "__main__":
            import cableway.torch
            with cableway.torch.use():
                t = library.zeros(N, device="cuda")
            there, back = cw.Queue(), cw.Queue()
            child = started(mark_and_send_on, there, back, 1)
            for _ in range(3):
                there.put(t)
                back.get(timeout=60)
                assert t[1].item() == 71
                t[1] = 0
                library.cuda.synchronize()
            assert sent()[1] == 0
            back.put(library.nn.Parameter(t))
            got = back.get()
            got.detach()[1] = 5
            library.cuda.synchronize()
            assert type(got) is library.nn.Parameter and got.requires_grad and t[1].item() == 5
            half = library.ones(N, device="cuda", dtype=library.bfloat16)
            back.put(half)
            got = back.get()
            assert got.dtype is library.bfloat16 and bool((got == 1).all())
            conjugate = library.tensor([1 + 2j], device="cuda").conj()
            back.put([conjugate]); assert back.get()[0].cpu().resolve_conj()[0] == 1 - 2j
            try: back.put(library.ones(3, device="cuda", requires_grad=True) * 2)
            except RuntimeError as said: assert "non-leaf" in str(said)
            else: raise AssertionError("a graph was sent")
            there.put(None); child.join()
        """,
    )


def test_what_was_put_stays_when_its_writer_is_killed(program):
    program(
        "torch",
        """
        def writes(q, said):
            w = cw.full(N, 3, "f4", device="cuda:0")
            q.put(w.torch()); q.put(new(np.arange(N, dtype="f4")))
            said.put(None)
            signal.pause()
        if __name__ == "__main__":
            q, said = cw.Queue(), cw.Queue()
            child = started(writes, q, said)
            said.get(timeout=60)
            child.kill(); child.join()
            assert (host(q.get()) == 3).all()
            assert (host(q.get()) == np.arange(N)).all()
        """,
    )


@on_the_double
@pytest.mark.parametrize("ours", [True, False])
def test_work_in_the_current_stream_comes_before_whoever_takes_the_tensor(program, ours):

    program(
        "torch",
        f"""
        OURS = {ours}
        if __name__ == "__main__":
            driver, stream, q = Driver(), ctypes.c_void_p(), cw.Queue()
            t = cw.zeros(N, "f4", device="cuda:0").torch() if OURS else new(np.zeros(N, "f4"))
            driver.call("cuStreamCreate", ctypes.byref(stream), 1)
            faults = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"]).fakecuda_faults
            faults(b"fill=delay:200000")
            library.set_stream(stream.value)
            for value in (3, 5):
                driver.call("cuMemsetD8Async", ctypes.c_uint64(t.data_ptr()), value, ctypes.c_size_t(4 * N), stream)
                q.put(t)
                assert OURS == (driver.cuda.cuStreamQuery(stream) != 0)   # a copy is complete when put() returns
                assert (host(q.get()).view("u1") == value).all()
            faults(b"")
        """,
    )


def test_share_sends_gpu_tensors_by_handle_through_multiprocessing(program):
    program(
        "torch",
        """
        def answers(source, target):
            import cableway.torch
            cableway.torch.share()
            while (x := source.get()) is not None:
                cw.asarray(x)[1:2] = np.full(1, 71, "f4")
                target.put(x)
                del x
        if __name__ == "__main__":
            import cableway.torch
            if not hasattr(library, "nn"): library.nn = type("nn", (), {"Parameter": type("Parameter", (), {})})
            w = cw.zeros(N, "f4", device="cuda:0")
            t, there, back = w.torch(), spawn.Queue(), spawn.Queue()
            with cableway.torch.share():
                child = started(answers, there, back)
                there.put(t)
                got = back.get(timeout=60)
                cw.asarray(got)[:1] = np.full(1, 7, "f4")
                assert w.to("cpu").numpy()[:2].tolist() == [7, 71]
                own = new(np.arange(N, dtype="f4"))
                there.put(own)
                assert host(back.get(timeout=60))[1] == 71 and host(own)[1] == 1
                there.put(None); child.join()
        """.replace(
            "import cableway.torch\n            cableway.torch.share()",
            """import cableway.torch
            if not hasattr(library, "nn"): library.nn = type("nn", (), {"Parameter": type("Parameter", (), {})})
            cableway.torch.share()""",
            1,
        ),
    )


@cuda_support.second_gpu
def test_tensors_of_one_form_on_two_gpus_arrive_where_they_lie(program):
    program(
        "torch",
        """
        def tells(source, target):
            while (x := source.get()) is not None:
                target.put((cw.asarray(x).device, float(host(x).sum())))
        if __name__ == "__main__":
            there, back = cw.Queue(), cw.Queue()
            child = started(tells, there, back)
            arrays = [cw.full(N, i + 1, "f4", device=f"cuda:{i}") for i in range(2)]
            for _ in range(2):
                for i, w in enumerate(arrays):
                    there.put(w.torch())
                    assert back.get(timeout=60) == (f"cuda:{i}", (i + 1.0) * N)
            there.put(None); child.join()
        """,
    )
