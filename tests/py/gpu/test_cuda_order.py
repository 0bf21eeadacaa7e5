"""GPU work of several processes in order: who waits for whom, without the CPU.

The work of a stream is held up by a host function that waits for a file, so that every test knows what is under way.
"""

from __future__ import annotations

import os

import cuda_programs
import cuda_support
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module()
program = cuda_programs.program


def test_a_reader_waits_for_the_writer_of_another_process_on_the_gpu(program):
    program("""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        at, s = low(w), Stream()
        with w.writing(s):
            s.hold("go")
            s.fill(at, 7)
        child = other('''if True:
            w = cw.get("w"); at = low(w); s = Stream()
            with w.reading(s):
                got = s.fetch(at)
            assert not os.path.exists("go") and not s.idle()  # the CPU is through, the GPU waits
            say()
            s.finish()
            assert (got == 7).all(), got
        ''')
        heard(child)
        assert not s.idle()
        touch("go")
        ended(child)
        w.wait(timeout=10)
    """)


def test_a_view_inside_names_the_stream_and_outside_waits(program):
    program("""
        import threading
        w = cw.zeros(1000, "u1", device="cuda:0")
        s = Stream()
        with w.writing(s):
            assert w.__cuda_array_interface__["stream"] == s.handle.value
            w.__dlpack__(stream=1); w.__dlpack__(stream=-1)
            s.hold("go")
            s.fill(low(w), 7)
        threading.Timer(0.2, touch, ["go"]).start()
        assert w.__cuda_array_interface__["stream"] is None
        assert s.idle()
        with w.reading():
            assert w.__cuda_array_interface__["stream"] == 1
    """)


def test_a_writer_waits_for_the_readers_of_other_processes(program):
    program("""
        w = cw.put("w", cw.full(1000, 3, "u1", device="cuda:0"))
        at = low(w)
        readers = [other('''if True:
            w = cw.get("w"); at = low(w); s = Stream()
            with w.reading(s):
                s.hold("go")
                got = s.fetch(at)
            say()
            s.finish()
            assert (got == 3).all(), got
        ''') for _ in range(3)]
        for child in readers: heard(child)
        s = Stream()
        with w.writing(s):
            s.fill(at, 9)
        assert not s.idle()
        touch("go")
        for child in readers: ended(child)
        w.wait()
        assert (w.to("cpu").numpy() == 9).all()
    """)


def test_many_handoffs_between_two_processes(program):
    program("""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        at, s = low(w), Stream()
        child = other('''if True:
            w = cw.get("w"); at = low(w); s = Stream()
            for i in range(100):
                sys.stdin.readline()
                with w.reading(s):
                    got = s.fetch(at)
                say()
                s.finish()
                assert (got == i).all(), (i, got)
        ''')
        for i in range(100):
            with w.writing(s, whole=True):
                s.fill(at, i)
            child.stdin.write("go\\n"); child.stdin.flush()
            heard(child)
        ended(child)
    """)


def test_a_copy_waits_for_what_is_under_way(program):
    program("""
        import threading
        w = cw.zeros(1000, "u1", device="cuda:0")
        at, s = low(w), Stream()
        with w.writing(s):
            s.hold("go")
            s.fill(at, 5)
        threading.Timer(0.2, touch, ["go"]).start()
        assert (w.to("cpu").numpy() == 5).all()
        os.remove("go")
        with w.reading(s):
            s.hold("go")
            got = s.fetch(at)
        threading.Timer(0.2, touch, ["go"]).start()
        w[...] = 6
        s.finish()
        assert (got == 5).all() and (w.to("cpu").numpy() == 6).all()
    """)


def test_memory_is_not_used_again_before_its_last_use(program):
    program("""
        w = cw.full(3 << 20, 3, "u1", device="cuda:0")
        at, s = low(w), Stream()
        with w.reading(s):
            s.hold("go")
            got = s.fetch(at)
        w.close()
        del w
        others = [cw.full(3 << 20, 9, "u1", device="cuda:0") for _ in range(5)]
        assert at not in [low(o) for o in others]
        touch("go")
        s.finish()
        assert (got == 3).all()
        del others[:]
        for _ in range(2000):
            again = [cw.full(3 << 20, 9, "u1", device="cuda:0") for _ in range(9)]
            if at in [low(o) for o in again]: break
            time.sleep(0.01)
        else: raise AssertionError("it never comes back")
    """)


def test_a_piece_can_be_lent_where_a_strangers_stream_has_used_the_last_one(program):
    """All numbers for pieces are in use; whose streams used the one that came back the lender does not know yet."""
    program("""
        from cableway import client
        from cableway._core.library import ffi, lib
        here, number, out = client.current().pointer, ffi.new("uint64_t *"), ffi.new("cw_array **")
        size, dtype = ffi.new("int64_t[1]", [32 << 20]), ffi.new("char[]", b"|u1")
        layout = ffi.new("cw_layout *", {"ndim": 1, "itemsize": 1, "shape": size, "dtype": dtype})
        assert lib.cw_array_new(here, b"cuda:0", layout, lib.CW_POOL, out) == 0
        begin = int(ffi.cast("uintptr_t", lib.cwpy_memory(out[0], number)))
        lent = []
        def lend():
            place = ffi.cast("void *", begin + 8192 * len(lent))
            done = lib.cw_array_at(here, place, 1000, out, number) == 0
            if done: lent.append(out[0])
            return done
        while lend(): pass
        assert len(lent) == 1023
        assert lib.cw_array_put(lent[500], b"p", 0, ffi.NULL, 0) == 0
        child = other('''if True:
            w = cw.get("p"); s = Stream()
            with w.reading(s): pass
            s.finish(); w.close(); say()
            sys.stdin.read()
        ''')
        heard(child)
        mine, s = cw.zeros(10, "u1", device="cuda:0"), Stream()
        with mine.reading(s): pass
        lib.cw_array_close(lent[500])
        cw.remove("p")
        end = time.monotonic() + 30
        while not lend():
            assert time.monotonic() < end
            time.sleep(0.01)
        child.stdin.close()
        ended(child)
    """)


def test_what_is_refused_and_what_times_out(program):
    program("""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        at, s, second = low(w), Stream(), Stream()
        def refused(error, words, use):
            try: use()
            except error as said: assert words in str(said), said
            else: raise AssertionError(words)
        with w.writing(s):
            with w.reading(s): pass  # a stream's own work is in order
            refused(ValueError, "this thread is writing", lambda: w.reading(second).__enter__())
            refused(ValueError, "this thread is writing", lambda: w.writing(second).__enter__())
            refused(ValueError, "writing the array already", lambda: w.writing(s).__enter__())
            refused(ValueError, "this thread is writing", lambda: w.wait())
            child = other('''if True:
                w = cw.get("w"); s = Stream()
                for use in (w.reading, w.writing):
                    try: use(s, timeout=0.1).__enter__()
                    except cw.Timeout: say()
                try: w.wait(timeout=0.1)
                except cw.Timeout: say()
            ''')
            for _ in range(3): heard(child)
            ended(child)
        w.wait()
        refused(ValueError, "nothing was begun here", lambda: w.reading(s).__exit__(None, None, None))
        refused(ValueError, "nothing was begun here", lambda: w.writing(s).__exit__(None, None, None))
        refused(TypeError, "a stream", lambda: w.reading("s"))
        read = cw.get("w", readonly=True)
        refused(ValueError, "read-only", lambda: read.writing(s).__enter__())
        with cw.zeros(3).writing(), cw.zeros(3).reading(): pass  # nothing to be done on the host
        for default in (0, 1, 2):
            with w.writing(default): pass
            with w.reading(default): pass
        w.wait(timeout=10)
        call("cuStreamBeginCapture_v2", s.handle, 2)
        refused(ValueError, "captured", lambda: w.reading(s).__enter__())
        graph = ctypes.c_void_p()
        call("cuStreamEndCapture", s.handle, ctypes.byref(graph))
        with w.reading(s): pass
    """)


@on_the_double
def test_a_gpu_whose_streams_cannot_wait(program, tmp_path):
    program(
        """
        w = cw.put("v", cw.zeros(1000, "u1", device="cuda:0"))
        at, s = low(w), Stream()
        with w.writing(s):
            s.hold("go")
            s.fill(at, 7)
        child = other('''if True:
            w = cw.get("v"); at = low(w); s = Stream()
            say()
            with w.reading(s):
                got = s.fetch(at)
            assert os.path.exists("go")  # the CPU waited
            s.finish()
            assert (got == 7).all(), got
        ''')
        heard(child)
        time.sleep(0.1)
        touch("go")
        ended(child)
        """,
        env={**os.environ, **cuda_support.double(tmp_path / "old", no_wait64=1)},
    )


def test_at_most_four_streams_wait_on_the_gpu(program):
    program("""
        import threading
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        at, s = low(w), Stream()
        child = other('''if True:
            w = cw.get("w"); at = low(w); s = Stream()
            with w.writing(s):
                s.hold("go")
                s.fill(at, 7)
            say()
            s.finish()
        ''')
        heard(child)
        streams = [Stream() for _ in range(4)]
        for stream in streams:
            with w.reading(stream, timeout=10):
                pass
        assert not any(stream.idle() for stream in streams)
        try: w.reading(s, timeout=0.2).__enter__()
        except cw.Timeout: pass
        else: raise AssertionError("a fifth stream")
        free, scratch = Stream(), cw.zeros(1000, "u1", device="cuda:0")
        free.fill(low(scratch), 1)
        free.finish()  # others go on
        touch("go")
        for stream in streams: stream.finish()
        with w.reading(s, timeout=10): pass
        ended(child)
    """)


def test_a_copy_that_a_stream_was_given_goes_on_without_us(program):
    program("""
        w = cw.zeros(1000, "u1", device="cuda:0")
        s, second = Stream(), Stream()
        with w.writing(s):
            s.hold("go")
            s.fill(low(w), 7)
        copy = cw.zeros(1000, "u1", device="cuda:0").copy_from(w, stream=second.handle.value)
        far = copy.to(cw.devices()[-1], stream=second.handle.value)
        assert not second.idle()
        touch("go")
        assert (far.to("cpu").numpy() == 7).all() and (copy.to("cpu").numpy() == 7).all()
        copy[...] = 8
        assert (far is copy or (far.to("cpu").numpy() == 7).all()) and (w.to("cpu").numpy() == 7).all()
    """)


def test_what_one_stream_uses_at_once_is_given_on_one_by_one(program):
    program("""
        w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"))
        out = cw.put("out", cw.zeros(1000, "u1", device="cuda:0"))
        at, s = low(out), Stream()
        with w.reading(s), w.reading(s):
            for i in (3, 4):
                with out.writing(s, whole=True):
                    s.fill(at, i)
                ended(other(f'''if True:
                    out = cw.get("out"); s = Stream()
                    with out.reading(s, timeout=20):
                        got = s.fetch(low(out))
                    s.finish()
                    assert (got == {i}).all(), got
                '''))
            with out.writing(s), out.reading(s):
                s.fill(at, 5)
        assert (out.to("cpu").numpy() == 5).all()
    """)


def test_a_thread_that_would_wait_for_itself_is_told(program):
    program("""
        w = cw.zeros(1000, "u1", device="cuda:0")
        s, other_stream = Stream(), Stream()
        for mine, then in ((w.writing, w.reading), (w.writing, w.writing), (w.reading, w.writing)):
            with mine(s):
                try: then(other_stream, timeout=20).__enter__()
                except ValueError as error: assert "would wait for itself" in str(error), error
                else: raise AssertionError((mine, then))
        with w.writing(s):
            try: w.writing(s).__enter__()
            except ValueError as error: assert "already" in str(error), error
            else: raise AssertionError
        with w.writing(other_stream, timeout=20): pass
    """)


def test_a_copy_without_a_stream_is_read_whole(program):
    program("""
        x = cw.put("x", cw.zeros(100_000, "u4", device="cuda:0"))
        child = other('''if True:
            x = cw.get("x"); n = 0
            say()
            while not os.path.exists("stop"):
                n += 1
                x.copy_from(np.full(100_000, n, "u4"))
        ''')
        heard(child)
        for _ in range(500):
            for got in (x.to("cpu"), x.copy().to("cpu"), cw.zeros(100_000, "u4").copy_from(x)):
                got = got.numpy()
                assert (got == got[0]).all(), (got[0], got[-1])
        touch("stop")
        ended(child)
    """)


def test_threads_that_copy_without_a_stream_come_one_after_the_other(program):
    program("""
        import threading
        x, y = (cw.zeros(100_000, "u4", device="cuda:0") for _ in range(2))
        sources = [cw.asarray(np.full(100_000, n, "u4"), device="cuda:0") for n in range(2)]
        wrong = []
        def write(n):
            try:
                for _ in range(300):
                    cw.copy([(x, sources[n]), (y, sources[n])])
                    got = x.copy().to("cpu").numpy()
                    if (got != got[0]).any(): wrong.append(got)
            except Exception as error:
                wrong.append(error)
        threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not wrong, wrong[0]
        assert (x.to("cpu").numpy() == y.to("cpu").numpy()).all()
    """)


def test_a_hundred_threads_copy_without_a_stream(program):
    program("""
        import threading
        x = cw.zeros(100_000, "u4", device="cuda:0")
        wrong = []
        def copy(n):
            try:
                for _ in range(10):
                    x.copy_from(np.full(100_000, n, "u4"))
                    got = x.to("cpu").numpy()
                    if (got != got[0]).any(): wrong.append(got)
            except Exception as error:
                wrong.append(error)
        threads = [threading.Thread(target=copy, args=(n,)) for n in range(100)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not wrong, wrong[0]
    """)


def test_a_copy_into_what_this_thread_is_reading_is_refused(program):
    program("""
        x, y = (cw.zeros(1000, "u1", device="cuda:0") for _ in range(2))
        for begun in (x.reading(), x.reading(Stream()), cw.work(reads=[x])):
            with begun:
                for copy in (lambda: x.copy_from(y), lambda: x.copy_from(np.ones(1000, "u1")), lambda: cw.copy([(x, y)])):
                    try: copy()
                    except ValueError as error: assert "would wait for itself" in str(error), error
                    else: raise AssertionError
                x.to("cpu")
    """)


def test_memory_of_a_killed_owner_is_used_again_where_numbers_were_free(program):
    """A free number of a block tells where that lay, though another one lies there by now."""
    program("""
        import json
        from pathlib import Path
        def held():
            command = [Path(cw.__file__).parent / "bin" / "cableway", "status", "--json"]
            return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["gauges"]["gpu_bytes"]
        owner = other('''if True:
            s = Stream()
            first, second = (cw.zeros(1 << 20, "u1", device="cuda:0") for _ in range(2))
            for array in (first, second):
                with array.writing(s): s.fill(low(array), 1)
            s.finish()
            at = low(first)
            del array, second, first
            later = [cw.put("c", cw.zeros(2 << 20, "u1", device="cuda:0"))]
            assert low(later[0]) == at                     # where both lay, under the number of one
            say()
            time.sleep(60)
        ''')
        heard(owner)
        before = held()
        owner.kill(); owner.wait()
        mine = [cw.zeros(1 << 20, "u1", device="cuda:0") for _ in range(8)]
        assert held() == before, (held(), before)
    """)


def test_arrays_of_two_connections_are_copied_in_order(program):
    program("""
        s = Stream()
        a = cw.full(1000, 7, "u1", device="cuda:0")
        with cw.connect(namespace="other"):
            b, host = cw.zeros(1000, "u1", device="cuda:0"), cw.zeros(1000, "u1")
            assert (b.copy_from(a).to("cpu").numpy() == 7).all()
            assert (host.copy_from(a).numpy() == 7).all()
            a.copy_from(np.full(1000, 8, "u1"))
            b.copy_from(a, stream=s.handle.value).wait()
            assert (b.to("cpu").numpy() == 8).all()
            with a.reading(s):
                try: a.copy_from(b)
                except ValueError as error: assert "would wait for itself" in str(error), error
                else: raise AssertionError
        a.copy_from(np.full(1000, 9, "u1"))
        assert (a.to("cpu").numpy() == 9).all()
    """)
