"""Ctrl-C, and whatever else a signal's handler raises, while GPU work is put in order: nothing stays begun, nothing hangs."""

from __future__ import annotations

import cuda_programs
import cuda_support
from conftest import PATH
from mover_support import world

cuda_support.require()


gpus = cuda_support.for_module()
program = cuda_programs.program


def test_ctrl_c_ends_a_wait_and_leaves_all_as_it_was(program):
    program("""
        import signal
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        child = other('''if True:
            w = cw.get("w"); s = Stream()
            with w.writing(s):
                say()
                while not os.path.exists("go"): time.sleep(0.01)
            s.finish()
        ''')
        heard(child)
        s, waiting = Stream(), False
        def interrupt(*_):
            if waiting: raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        for wait in (lambda: w.wait(), lambda: w.reading(s).__enter__(), lambda: w.writing(s).__enter__(), lambda: w.to("cpu")):
            try:
                waiting = True
                wait()
            except KeyboardInterrupt: waiting = False
            else: raise AssertionError("it did not wait")
        signal.setitimer(signal.ITIMER_REAL, 0)
        touch("go")
        ended(child)
        with w.writing(s): s.fill(low(w), 3)
        w.wait()
        assert (w.to("cpu").numpy() == 3).all()
    """)


def test_ctrl_c_as_work_begins_leaves_nothing_begun(program):
    program("""
        import signal
        from cableway._cuda import stream_order
        class Late:  # the signal comes when a call has begun something, and before Python goes on
            def __getattr__(self, name):
                def call(*arguments):
                    status = getattr(real, name)(*arguments)
                    if name.endswith("_begin"): signal.raise_signal(signal.SIGINT)
                    return status
                return call
        real, s, t = stream_order.lib, Stream(), Stream()
        w = cw.zeros(1000, "u1", device="cuda:0")
        work = cw.work(s, writes=w)
        with work: pass
        for begin in (lambda: w.writing(s), lambda: w.reading(s), lambda: work):
            stream_order.lib = Late()
            try: begin().__enter__()
            except KeyboardInterrupt: pass
            else: raise AssertionError("no signal came")
            finally: stream_order.lib = real
            with w.writing(t, timeout=60): pass
        with w.reading(s):
            stream_order.lib = Late()
            try: w.reading(s).__enter__()
            except KeyboardInterrupt: pass
            finally: stream_order.lib = real
        assert stream_order.begun(w._open_lease()) is None
    """)


def test_ctrl_c_ends_a_read_that_asks_a_stopped_broker_for_fences(program):
    """All places for reads are taken, by streams of which this process knows nothing yet."""
    program("""
        from cableway import client
        from cableway._core.library import lib
        w, mine = cw.put("w", cw.zeros(1000, "u1", device="cuda:0")), cw.zeros(1000, "u1", device="cuda:0")
        child = other('''if True:
            w = cw.get("w"); streams = [Stream() for _ in range(6)]
            for s in streams:
                with w.reading(s): s.hold("go")
            say()
            for s in streams: s.finish()
        ''')
        heard(child)
        s, waiting = Stream(), True
        with mine.reading(s): pass  # a page of its own is here
        broker = lib.cw_client_broker_pid(client.current().pointer)
        def interrupt(*_):
            if waiting: raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        os.kill(broker, signal.SIGSTOP)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
            w.reading(s).__enter__()
        except KeyboardInterrupt: waiting = False
        else: raise AssertionError("it did not wait")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(broker, signal.SIGCONT)
        touch("go")
        ended(child)
        with w.reading(s): pass
    """)


def test_an_interrupt_anywhere_leaves_nothing_begun(program):
    program(f"""
        sys.path[:0] = {PATH!r}
        from interrupted import everywhere
        from cableway._cuda import stream_order
        s, t = Stream(), Stream()
        w, v = cw.zeros(1000, "u1", device="cuda:0"), cw.zeros(1000, "u1", device="cuda:0")
        def write():
            with w.writing(s.handle.value): s.fill(low(w), 3)
        def read():
            with w.reading(s.handle.value): pass
        def inside():
            with w.reading(s.handle.value), w.reading(s.handle.value): pass
        def both():
            with cw.work(s.handle.value, reads=v, writes=w): pass
        def free():
            assert stream_order.begun(w._open_lease()) is None and stream_order.begun(v._open_lease()) is None
            with w.writing(t.handle.value, timeout=60): pass
            with v.writing(t.handle.value, timeout=60): pass
        for use in (write, read, inside, both):
            assert everywhere(use, free) > 50
    """)


def test_an_interrupt_anywhere_leaves_no_array_that_cannot_leave_its_gpu(tmp_path):
    with world(tmp_path / "b", CABLEWAY_MAX_GPU_BYTES=256 << 20) as run:
        run(f"""
sys.path[:0] = {PATH!r}
from interrupted import everywhere
from cableway._core.leases import Pin
N = (48 << 20) // 8
def make(): return cw.empty(N, device="cuda:0", evictable=True)
w = make()
for use in (lambda: Pin(w._open_lease()), w.prefetch, w.__dlpack__):
    assert everywhere(use, lambda: None) > 10
    w.wait()
    others = [make() for _ in range(5)]
    assert w.away
    for other in others: other.close()
        """)
