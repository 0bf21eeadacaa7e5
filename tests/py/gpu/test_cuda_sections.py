"""A section's wait: the work of a `with` is done and built on complete data, or `ProducerDied`, whoever was killed meanwhile.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import random
import textwrap
from collections.abc import Callable

import cuda_programs
import cuda_support
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module()
program = cuda_programs.program


# A writer whose work on "w" is submitted and held up, until it is killed or the file "go" is there.
WRITER = """
def told(use, error=cw.ProducerDied, words=""):
    try: use()
    except error as said: assert words in str(said), said
    else: raise AssertionError(f"no {error.__name__}")
WRITES = '''if True:
    w, s = cw.get("w"), Stream()
    with w.writing(s, whole=True):
        s.hold("go")
        s.fill(low(w), 7)
    say()
    sys.stdin.read()
    s.finish()
'''
w, y, z = (cw.put(name, cw.zeros(1000, "u1", device="cuda:0")) for name in "wyz")
s = Stream()
def writer():
    child = other(WRITES)
    heard(child)
    return child
def kill(child):
    child.kill()
    child.wait()
def finish(child):
    touch("go")
    child.stdin.close()
    ended(child)
"""


@pytest.fixture
def run(program: Callable[..., object]) -> Callable[[str], object]:
    """Runs a program that has all this."""
    return lambda text: program(WRITER + textwrap.dedent(text))


SECTIONS = [
    "w.reading(s)",
    "cw.work(s, reads=w)",
    "cw.work(s, reads=[z, w], writes=y)",
    "cw.work(s, reads=w, writes=y, whole=True)",
]


@pytest.mark.parametrize("section", SECTIONS)
def test_whoever_reads_while_the_writer_is_killed_is_told_by_the_sections_wait(run, section):
    run(f"""
        child = writer()
        with {section} as r:
            got = s.fetch(low(w))
        assert not s.idle()                                   # the end came before the death, and could not know
        kill(child)
        told(lambda: r.wait(timeout=30), words="incomplete data")
        assert s.idle()                                       # done, too
        told(lambda: r.wait(timeout=30))                      # whoever asks
        told(lambda: w.reading(s).__enter__())                # and so are the next calls on the array
        told(lambda: w.wait(timeout=30))
        told(lambda: w.to("cpu"))
        with z.reading(s) as other_array: pass                # of that array alone
        other_array.wait(timeout=30)
        with w.writing(s, whole=True) as again: s.fill(low(w), 4)
        again.wait(timeout=30)
        with w.reading(s) as r: got = s.fetch(low(w))
        r.wait(timeout=30)
        assert (got == 4).all()
    """)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_whose_writer_finished_is_told_that_all_is_complete(run, section):
    run(f"""
        child = writer()
        with {section} as r:
            got = s.fetch(low(w))
        told(lambda: r.wait(timeout=0.05), cw.Timeout)        # not yet
        finish(child)
        r.wait(timeout=30)
        assert s.idle() and (got == 7).all()
        r.wait()
    """)


def test_who_is_killed_when_its_work_is_complete_leaves_good_data(run):
    run("""
        child = writer()
        touch("go")
        w.wait(timeout=30)
        with w.reading(s) as r:
            s.hold("mine")
            got = s.fetch(low(w))
        kill(child)
        touch("mine")
        r.wait(timeout=30)
        assert (got == 7).all()
    """)


def test_what_was_written_from_incomplete_data_is_told_through_all_who_passed_it_on(
    run,
):
    run("""
        child = writer()
        between = other('''if True:
            w, y, s = cw.get("w"), cw.get("y"), Stream()
            with cw.work(s, reads=w, writes=y, whole=True) as r: s.fill(low(y), 5)
            say()
            try: r.wait(timeout=30)
            except cw.ProducerDied: say("told")
            sys.stdin.read()
        ''')
        heard(between)
        with y.reading(s) as r: got = s.fetch(low(y))
        kill(child)
        told(lambda: r.wait(timeout=30))                      # though who wrote y lives
        heard(between, "told")
        between.stdin.close()
        ended(between)
        told(lambda: y.wait(timeout=30))
    """)


def test_every_section_that_is_open_when_the_death_is_known_is_told_at_its_own_end(run):
    run("""
        child = writer()
        outer, inner = w.reading(s), z.reading(s)
        outer.__enter__()
        got = s.fetch(low(w))
        inner.__enter__()
        kill(child)
        s.finish()                                            # poison has ended the wait: it is known
        told(lambda: inner.__exit__(None, None, None))
        told(lambda: outer.__exit__(None, None, None))
        for section in (inner, outer): told(lambda: section.wait(timeout=30))
        with z.reading(s) as r: pass
        r.wait(timeout=30)
    """)


def test_a_write_that_is_open_when_another_call_is_told_of_the_death_is_not_taken_for_complete(
    run,
):
    run("""
        child = writer()
        writing = y.writing(s, whole=True)
        writing.__enter__()
        with w.reading(s): got = s.fetch(low(w))              # comes before what is written next
        kill(child)
        s.finish()
        told(lambda: z.reading(s).__enter__())
        s.fill(low(y), 9)
        told(lambda: writing.__exit__(None, None, None))
        told(lambda: writing.wait(timeout=30))
        told(lambda: y.wait(timeout=30))
        reader = other('''if True:
            try: cw.get("y").to("cpu")
            except cw.ProducerDied: say()
        ''')
        heard(reader)
        ended(reader)
    """)


def test_a_section_behind_another_on_its_stream_is_built_on_what_that_one_read(run):
    """What the stream computed from w in memory of its own, y is written from."""
    run("""
        child = writer()
        with w.reading(s): got = s.fetch(low(w))
        with y.writing(s, whole=True) as r: s.fill(low(y), 5)
        t = Stream()
        with z.reading(t) as apart: pass                      # another stream's is not
        kill(child)
        told(lambda: r.wait(timeout=30))
        apart.wait(timeout=30)
        told(lambda: y.wait(timeout=30))
    """)


def test_who_writes_a_part_of_an_incomplete_array_is_told_at_the_end(run):
    run("""
        kill(writer())
        told(lambda: w.wait(timeout=30))
        part = w.writing(s)
        part.__enter__()
        s.fill(low(w), 3)
        told(lambda: part.__exit__(None, None, None), words="whole")
        told(lambda: part.wait(timeout=30))
        told(lambda: w.wait(timeout=30))
        with w.writing(s, whole=True) as r: s.fill(low(w), 3)
        r.wait(timeout=30)
        w.wait(timeout=30)
    """)


def test_a_reader_that_is_killed_spoils_nothing(run):
    run("""
        reader = other('''if True:
            w, s = cw.get("w"), Stream()
            with w.reading(s): s.hold("never"); s.fetch(low(w))
            say()
            sys.stdin.read()
        ''')
        heard(reader)
        with w.writing(s, whole=True) as r: s.fill(low(w), 6)
        assert not s.idle()                                   # it waits for the reader
        kill(reader)
        r.wait(timeout=30)
        w.wait(timeout=30)
        assert (w.to("cpu").numpy() == 6).all()
    """)


def test_what_a_section_cannot_be_asked(run):
    run("""
        r = w.reading(s)
        told(r.wait, ValueError, "after the `with`")
        with r:
            told(r.wait, ValueError, "wait for itself")
        r.wait(timeout=30)
        with r as again: assert again is r                    # it can be entered again
        r.wait(timeout=30)
        work = cw.work(s, reads=w)
        told(work.wait, ValueError, "after the `with`")
        with work:
            told(work.wait, ValueError, "wait for itself")
        work.wait(timeout=30)
        with cw.work(s) as nothing: pass
        nothing.wait()
        w.close()
        r.wait(timeout=30)                                    # its work is known all the same
        pid = os.fork()
        if pid == 0:
            try: r.wait(timeout=30)
            except ValueError as said: os._exit(0 if "fork" in str(said) else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
    """)


def test_sections_of_host_arrays_wait_for_nothing(script):
    script("""
        import cableway as cw
        x = cw.zeros(3)
        with x.reading() as r: pass
        r.wait()
        with x.writing() as r: x[...] = 1
        r.wait(timeout=0)
        with cw.work(reads=x, writes=[x]) as r: pass
        r.wait()
    """)


def test_an_error_inside_goes_on_and_the_section_can_still_be_asked(run):
    run("""
        child = writer()
        try:
            with w.reading(s) as r:
                kill(child)
                s.finish()
                raise KeyError("mine")
        except KeyError: pass
        told(lambda: r.wait(timeout=30))
    """)


def test_when_the_broker_is_killed_a_section_that_is_not_done_says_so_and_one_that_is_tells_what_it_was(
    run,
):
    run("""
        from cableway import client
        with z.reading(s) as good: pass
        good.wait(timeout=30)
        child = writer()
        with w.reading(s) as r: got = s.fetch(low(w))
        os.kill(client.current().broker_pid, signal.SIGKILL)
        told(lambda: r.wait(timeout=30), cw.BrokerLost)
        good.wait(timeout=30)
        finish(child)
        s.finish()
        r.wait(timeout=30)
        assert cuda.cuStreamQuery(s.handle) == 0
    """)


def test_signals_end_no_wait_and_their_handlers_may_raise(run):
    run("""
        class Alarm(Exception): pass
        def rings(*_): raise Alarm
        child = writer()
        with w.reading(s) as r: got = s.fetch(low(w))
        signal.signal(signal.SIGALRM, rings)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        told(lambda: r.wait(timeout=30), Alarm)
        signal.signal(signal.SIGALRM, lambda *_: finish(child))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        r.wait(timeout=30)
        assert (got == 7).all()
    """)


@on_the_double
def test_a_section_whose_own_context_broke_says_so(run):
    run("""
        with w.writing(s) as r:
            s.hold("go")
            assert cuda.fakecuda_faults(b"fill@1=ILLEGAL_ADDRESS") == 0
            s.fill(low(w), 7)
        touch("go")
        told(lambda: r.wait(timeout=30), cw.DeviceError, "CUDA_ERROR_ILLEGAL_ADDRESS")
    """)


ROUNDS = 4 if cuda_support.REAL else 10


def test_whenever_the_writer_is_killed_a_wait_that_returns_means_complete_data(run):
    """Each version is written in pieces; who saw two versions in one array was told."""
    seed = int(os.environ.get("CABLEWAY_TEST_SEED", random.randrange(1 << 30)))
    print(f"CABLEWAY_TEST_SEED={seed}")
    run(f"""
        import random
        chance = random.Random({seed})
        PIECES = '''if True:
            w, s = cw.get("w"), Stream()
            at = low(w)
            piece = lambda i, value: call("cuMemsetD8Async", ctypes.c_uint64(at + 100 * i), ctypes.c_ubyte(value), ctypes.c_size_t(100), s.handle)
            say()
            for version in range(1, 1 << 30):
                with w.writing(s, whole=True):
                    for i in range(10): piece(i, version % 251)
                if version % 4 == 0: w.wait()
        '''
        good = bad = 0
        for _ in range({ROUNDS}):
            with w.writing(s, whole=True) as r: s.fill(low(w), 0)
            r.wait(timeout=30)
            child = other(PIECES)
            heard(child)
            until = time.monotonic() + chance.random() * 0.02
            while True:
                if child.returncode is None and time.monotonic() > until: kill(child)
                try:
                    with w.reading(s, timeout=30) as r: got = s.fetch(low(w))
                    r.wait(timeout=30)
                except cw.ProducerDied:
                    bad += 1
                    s.finish()
                    break
                seen = got.copy.to("cpu").numpy()
                assert (seen == seen[0]).all(), seen
                good += 1
                if child.returncode is not None:
                    try: w.wait(timeout=30)
                    except cw.ProducerDied: pass
                    break
        assert good and good + bad >= {ROUNDS}, (good, bad)
        print(good, "complete,", bad, "told")
    """)
