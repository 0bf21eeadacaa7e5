"""PyTorch's tensors in host memory through a Queue, and by `cableway.torch.share()` through multiprocessing's.

With PyTorch where it is installed, else with a stand-in (support/host_standins).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STANDINS = Path(__file__).resolve().parents[1] / "support" / "host_standins"

HEAD = """
import multiprocessing as mp, os, pickle, signal, sys, threading
import numpy as np, torch
import cableway as cw, cableway.torch
from cableway._transport.tensors import SHARED_BYTES
spawn = mp.get_context("spawn")
MANY = SHARED_BYTES // 4 + 10
def many(): return torch.tensor(np.arange(MANY, dtype="f4"))
def same(x, y):
    "Of one class, one dtype, and with the same bytes."
    a, b = (t.detach().view(torch.int16).numpy() if t.dtype is torch.bfloat16 else t.detach().numpy() for t in (x, y))
    return type(x) is type(y) and x.dtype is y.dtype and x.requires_grad == y.requires_grad and a.shape == b.shape and bool((a == b).all())
def mark_and_send_on(source, target, at):
    while (x := source.get()) is not None:
        x[at] = 70 + at
        target.put(x)
def started(function, *arguments):
    child = spawn.Process(target=function, args=arguments, daemon=True)
    child.start()
    return child
"""


@pytest.fixture
def program(script: Callable[..., object]) -> Callable[[str], object]:
    """Runs a main part, or functions and a main part, after HEAD."""
    paths = [] if importlib.util.find_spec("torch") else [str(STANDINS)]
    paths += [str(STANDINS.parent), str(STANDINS.parents[1])]
    paths += filter(None, [os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": ":".join(paths)}

    def run(text: str) -> object:
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        return script(HEAD + "\n".join(line[indent:] for line in lines), env=env)

    return run


def test_no_tensor_is_lost_by_what_a_signals_handler_raises(program):
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 raises behind a return, too")
    program("""
        class Raised(Exception):
            pass
        def handle(*_):
            global came
            came += 1
            raise Raised
        def until_raised(before):  # where a loop goes back Python 3.13 raises outside of the try that it is in
            while came == before:
                time.sleep(0)
        if __name__ == "__main__":
            import random, time
            came, raised, found, q = 0, 0, [], cw.Queue()
            signal.signal(signal.SIGALRM, handle)
            for n in range(1000):
                ours = cw.asarray(np.full(9, n, "f4")).torch()
                q.put(ours if n % 2 else {"ours": ours, "theirs": torch.tensor(np.full(9, n, "f4"))})
                got, before = None, came
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-4))
                    got = q.get()
                    until_raised(before)
                except Raised:
                    pass
                if got is None:
                    raised += 1
                    got = q.get_nowait()
                found.append([float(t.numpy()[-1]) for t in ([got] if n % 2 else got.values())])
                assert q.empty()
            assert found == [[n] if n % 2 else [n, n] for n in range(1000)] and raised > 10, raised
    """)


def test_a_tensor_on_memory_of_ours_goes_without_a_copy_and_is_sent_on_by_whoever_got_it(program):
    program("""
        if __name__ == "__main__":
            w = cw.zeros(MANY, "f4")
            t, (first, second, back) = w.torch(), (cw.Queue() for _ in range(3))
            children = [started(mark_and_send_on, first, second, 1), started(mark_and_send_on, second, back, 2)]
            for sent, begin in ((t, 0), (t[10:20], 10), (cw.put("named", w).torch()[30:], 30)):
                first.put(sent)
                got = back.get(timeout=60)
                assert w.numpy()[begin + 1] == 71 and w.numpy()[begin + 2] == 72
                got[0] = 7                                     # by the third process, and back: the same memory
                assert w.numpy()[begin] == 7 and type(got) is torch.Tensor
                del got
            first.put(None); second.put(None)
            for child in children: child.join()
    """)


@pytest.mark.parametrize("size", ["3", "MANY", "50 * MANY"])
def test_another_tensor_is_copied_once_and_is_the_receivers_own(program, size):
    program(f"""
        if __name__ == "__main__":
            t, there, back = torch.tensor(np.arange({size}, dtype="f4")), cw.Queue(), cw.Queue()
            child = started(mark_and_send_on, there, back, 1)
            there.put(t)
            got = back.get(timeout=60)
            assert got[1].tolist() == 71 and t[1].tolist() == 1
            got[1] = 1
            assert same(t, got)
            there.put(None); child.join()
    """)


@pytest.mark.parametrize("how", ["cw.Queue()", "spawn.Queue()"])
def test_dtypes_and_classes_and_what_stands_around_a_tensor_are_kept(program, how):
    program(f"""
        if __name__ == "__main__":
            q = {how}
            with cableway.torch.share():
                def trip(x):
                    q.put(x)
                    return q.get(timeout=60)
                for n in (4, 2 * MANY):
                    values = np.arange(n) % 100
                    for kind in (torch.float32, torch.int16, torch.uint8, torch.bfloat16):
                        t = torch.tensor(values, dtype=kind)
                        assert same(t, trip(t)), (n, kind)
                    assert same(torch.tensor(values, dtype=torch.float32)[::2], trip(torch.tensor(values, dtype=torch.float32)[::2]))
                    p = torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))
                    assert same(p, trip(p)) and p.requires_grad
                    frozen = torch.nn.Parameter(torch.tensor(values, dtype=torch.float32), requires_grad=False)
                    assert same(frozen, trip(frozen))
                    g = torch.tensor(values, dtype=torch.float32).requires_grad_()
                    assert same(g, trip(g))
                t, big = torch.tensor([1.0, 2.0]), many()
                with_graph = torch.tensor([1.0, 2.0]).requires_grad_() if hasattr(torch, "cuda") else torch.tensor([1.0]).requires_grad_()
                if hasattr(torch, "cuda"): with_graph = with_graph * 2
                else: with_graph.is_leaf = False
                try: cw.Queue().put(with_graph)
                except RuntimeError: pass
                else: raise AssertionError("a graph was sent")
                got = trip({{"a": [t, big], "b": big, "c": np.arange(3), "n": 5}})
                assert got["a"][1] is got["b"] and got["n"] == 5 and same(got["b"], big) and same(got["a"][0], t)
    """)


def test_what_was_put_stays_when_its_writer_is_killed(program):
    program("""
        def writes(q, said):
            w = cw.full(MANY, 3, "f4")
            q.put(w.torch()); q.put(many()); q.put([torch.tensor([5.0]), many()])
            said.put(None)
            signal.pause()
        if __name__ == "__main__":
            q, said = cw.Queue(), cw.Queue()
            child = started(writes, q, said)
            said.get(timeout=60)
            child.kill(); child.join()
            assert (q.get().numpy() == 3).all()
            assert same(q.get(), many())
            few, more = q.get()
            assert few.tolist() == [5.0] and same(more, many())
    """)


def test_share_sends_by_handle_through_whatever_multiprocessing_has(program):
    program("""
        def answers(source, target):
            cableway.torch.share()
            mark_and_send_on(source, target, 1)
        def piped(end):
            cableway.torch.share()
            x = end.recv(); x[2] = 72; end.send(x)
        def adds(x):
            x[3] = 73
            return x
        if __name__ == "__main__":
            w = cw.zeros(MANY, "f4")
            t, there, back, (mine, theirs) = w.torch(), spawn.Queue(), spawn.Queue(), spawn.Pipe()
            sharing = cableway.torch.share()
            children = [started(answers, there, back), started(piped, theirs)]
            there.put(t)
            got = back.get(timeout=60)
            assert t[1].tolist() == 71
            got[0] = 7
            assert t[0].tolist() == 7
            mine.send(t)
            mine.recv()[4] = 74
            assert t[2].tolist() == 72 and t[4].tolist() == 74
            with cw.Pool(1, cableway.torch.share) as pool:
                pool.apply(adds, (t,))
                assert t[3].tolist() == 73
            big = many()
            there.put(big)
            assert back.get(timeout=60)[1].tolist() == 71 and big[1].tolist() == 1
            there.put(None)
            for child in children: child.join()
            sharing.end(); sharing.end()
    """)


def test_share_ends_and_plain_pickles_are_pytorchs_all_the_while(program):
    program("""
        from multiprocessing.reduction import ForkingPickler
        def own(dumps, x):
            "How it was pickled: cableway's names are in ours."
            try: return b"cableway" not in bytes(dumps(x))
            except RuntimeError as said: return "PyTorch" in str(said)
        if __name__ == "__main__":
            before, t = dict(ForkingPickler._extra_reducers), torch.tensor([1.0])
            with cableway.torch.share():
                assert not own(ForkingPickler.dumps, t) and own(pickle.dumps, t)
                with cableway.torch.share(): pass
                assert not own(ForkingPickler.dumps, t)
            assert ForkingPickler._extra_reducers == before
            assert own(ForkingPickler.dumps, t)
            q = cw.Queue()
            q.put(t); assert q.get().tolist() == [1.0]      # a Queue of ours needs no share()
    """)


def test_a_queue_that_refuses_a_tensor_leaves_nothing_at_the_broker(program):
    program("""
        from cli_support import run_json
        from waiting import eventually
        def transits(): return run_json("status")["gauges"]["transits"]
        if __name__ == "__main__":
            import tempfile
            own = tempfile.TemporaryDirectory(prefix="cwq-")    # a broker of its own: what others left would be counted
            os.environ["CABLEWAY_DIR"] = own.name
            w, q = cw.zeros(MANY, "f4"), cw.Queue(1)
            q.put(w.torch())
            assert eventually(lambda: transits() == 1)
            for x in (w.torch(), many(), [w.torch(), many()]):
                try: q.put(x, timeout=0)
                except Exception as said: assert type(said).__name__ == "Full", said
                else: raise AssertionError
            assert eventually(lambda: transits() == 1)
            q.get()
            assert eventually(lambda: transits() == 0)
            broker = cw.connect().broker_pid
            os.kill(broker, signal.SIGTERM)
            assert eventually(lambda: not os.path.exists(f"/proc/{broker}"))
    """)


def test_an_arrays_tensor_is_its_memory(program):
    program("""
        if __name__ == "__main__":
            w = cw.asarray(np.arange(12, dtype="f4").reshape(3, 4))
            t = w.torch()
            t[1, 2] = 50
            assert w.numpy()[1, 2] == 50 and t.shape == (3, 4)
            part = w[1:, ::2].torch()
            part[0, 1] = 60
            assert w.numpy()[1, 2] == 60
            w.close()
            assert t[1, 2].tolist() == 60
            try: cw.zeros(3, "M8[s]").torch()
            except BufferError: pass
            else: raise AssertionError
    """)
