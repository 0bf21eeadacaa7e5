"""What a death does to GPU work: who reads what the dead had begun is told, also of what was computed from it since.

Runs in `make test-more`.
"""

from __future__ import annotations

import cuda_programs
import cuda_support
import pytest

cuda_support.require()


gpus = cuda_support.for_module()
program = cuda_programs.program


PRODUCER = """if True:
    w = cw.get("w"); at = low(w); s = Stream()
    with w.writing(s, whole=True):
        s.fill(at, 1)
    w.wait()
    if {begun}:
        with w.writing(s):
            s.hold("never")
            s.fill(at, 2)
    say()
    time.sleep(100)
"""


@pytest.mark.parametrize("begun", [False, True])
def test_a_producer_that_is_killed(program, begun):
    program(f"""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        at, s = low(w), Stream()
        child = other({PRODUCER.format(begun=begun)!r})
        heard(child)
        if {begun}:
            with w.reading(s, timeout=10):  # submitted: the stream waits
                got = s.fetch(at)
            assert not s.idle()
        child.kill(); child.wait()
        s.finish()  # poison ends the wait
        def dies(use):
            for _ in range(3000):
                try: use()
                except cw.ProducerDied as error: return error
                time.sleep(0.01)
            raise AssertionError
        if {begun}:
            dies(lambda: w.wait(timeout=10))
            dies(lambda: w.reading(s).__enter__())
            with w.writing(s, whole=True):  # written anew it is good again
                s.fill(at, 4)
            w.wait()
            assert (w.to("cpu").numpy() == 4).all()
        else:
            time.sleep(1.5)  # the dead one's fences are forgotten
            w.wait(timeout=10)
            with w.reading(s):
                got = s.fetch(at)
            s.finish()
            assert (got == 1).all()
    """)


def test_what_was_computed_from_incomplete_data_is_told_to_its_readers(program):
    program(f"""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        y = cw.put("y", cw.zeros(1000, "u1", device="cuda:0"))
        child = other({PRODUCER.format(begun=True)!r})
        heard(child)
        s = Stream()
        with w.reading(s, timeout=10), y.writing(s):
            s.fill(low(y), 8)
        assert not s.idle()
        child.kill(); child.wait()
        s.finish()
        reader = other('''if True:
            y = cw.get("y")
            try: y.wait(timeout=10)
            except cw.ProducerDied: say()
        ''')
        heard(reader)
        ended(reader)
        time.sleep(1.5)
        try: y.wait(timeout=10)
        except cw.ProducerDied: pass
        else: raise AssertionError
    """)


PRODUCERS = """
        c = other('''if True:
            c, s = cw.put("c", cw.zeros(1000, "u1", device="cuda:0")), Stream()
            with c.writing(s): s.hold("never"); s.fill(low(c), 3)
            say(); time.sleep(1000)
        ''')
        heard(c)
        a = other('''if True:
            c, w, s = cw.get("c"), cw.put("w", cw.zeros(1000, "u1", device="cuda:0")), Stream()
            w.wait()
            with w.writing(s, whole=True), c.reading(s): s.fill(low(w), 4)
            say(); sys.stdin.read()
        ''')
        heard(a)
        w = cw.get("w")
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_who_writes_a_part_over_incomplete_data_hands_on_what_they_wait_for(program, stopped):
    """a has written what it computed from c's work, which is still under way; then a part of that is written anew."""
    program(f"""{PRODUCERS}
        from cableway import client
        s = Stream()
        with w.writing(s):
            s.fill(low(w), 5)
            if {stopped}:  # and signals end what waits for it
                os.kill(client.current().broker_pid, signal.SIGSTOP)
                signal.signal(signal.SIGALRM, lambda *_: None)
                signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
        signal.setitimer(signal.ITIMER_REAL, 0)
        c.kill(); c.wait()
        os.kill(client.current().broker_pid, signal.SIGCONT)
        try: w.wait(timeout=30)
        except cw.ProducerDied: pass
        else: raise AssertionError("nobody told")
        a.stdin.close()
        ended(a)
    """)


@pytest.mark.parametrize("begin", ["w.writing(s, whole=True)", "cw.work(s, writes=w, whole=True)"])
def test_who_writes_all_anew_owes_nothing_to_what_the_write_before_waited_for(program, begin):
    program(f"""{PRODUCERS}
        s = Stream()
        with {begin}: s.fill(low(w), 5)
        c.kill(); c.wait()
        w.wait(timeout=30)
        assert (w.to("cpu").numpy() == 5).all()
        with w.reading(s): pass
        a.stdin.close()
        ended(a)
    """)


def test_what_many_writes_of_parts_wait_for_is_handed_on_through_all_of_them(program):
    """More streams than a record has room for: the CPU waits for what the first of them waited for."""
    program(f"""{PRODUCERS}
        import threading
        many = other('''if True:
            w, streams = cw.get("w"), [Stream() for _ in range(4)]
            for s in streams:
                with w.writing(s): s.fill(low(w), 5)
            say(); sys.stdin.read()
        ''')
        heard(many)
        s = Stream()
        with w.writing(s): s.fill(low(w), 6)
        begun, ended_ = threading.Event(), threading.Event()
        def last():
            s = Stream()
            try:
                with w.writing(s): begun.set(); s.fill(low(w), 7)
            except cw.ProducerDied: ended_.set()  # the rest of w is incomplete
        thread = threading.Thread(target=last)
        thread.start()
        assert begun.wait(30) and not ended_.wait(0.3)  # it waits for c, of whom no room is left to tell
        c.kill(); c.wait()
        assert ended_.wait(30)
        thread.join()
        try: w.wait(timeout=30)
        except cw.ProducerDied: pass
        else: raise AssertionError("nobody told")
        for child in (many, a): child.stdin.close(); ended(child)
    """)


def test_who_dies_inside_its_writing_and_leaves_a_child_that_lives_on(program):
    program("""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        good = cw.put("good", cw.full(1000, 9, "u1", device="cuda:0"))
        child = other('''if True:
            w = cw.get("w"); s = Stream()
            with w.writing(s, whole=True):
                s.fill(low(w), 1)
                pid = os.fork()
                if pid == 0:
                    time.sleep(100)
                    os._exit(0)
                say(str(pid))
                time.sleep(100)
        ''')
        pid, s = int(child.stdout.readline()), Stream()
        child.kill()
        child.wait()
        for use in (lambda: w.wait(), lambda: w.reading(s).__enter__(), lambda: w.to("cpu")):
            try: use()
            except cw.ProducerDied as error: assert "died" in str(error), error
            else: raise AssertionError
        assert (good.to("cpu").numpy() == 9).all()
        try: w.writing(s, timeout=20).__enter__()
        except cw.ProducerDied as error: assert "a forked child of it lives on" in str(error), error
        else: raise AssertionError
        os.kill(pid, signal.SIGKILL)
        with w.writing(s, whole=True):  # when nothing can land any more
            s.fill(low(w), 2)
        assert (w.to("cpu").numpy() == 2).all()
    """)
