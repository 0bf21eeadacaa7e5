"""Work on several GPU arrays at once (`work`), and many copies as one piece of work (`copy`)."""

from __future__ import annotations

import cuda_programs
import cuda_support
import numpy as np
import pytest

import cableway as cw

cuda_support.require()
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")

FAULTS = """
def faults(text):
    "From now on this process's driver fails as it is told; calls are counted anew."
    assert cuda.fakecuda_faults(text.encode()) == 0
"""


gpus = cuda_support.for_module(devices=2)
program = cuda_programs.program


def test_work_on_several_arrays_is_ordered_with_that_of_others(program):
    program("""
        a, b, c = (cw.put(name, cw.full(1000, i, "u1", device="cuda:0")) for i, name in enumerate("abc"))
        s = Stream()
        with cw.work(s, reads=[a, b], writes=c):
            assert c.__cuda_array_interface__["stream"] == s.handle.value
            got = s.fetch(low(a))
            s.hold("go")
            s.fill(low(c), 9)
        child = other('''if True:
            a, b, c = (cw.get(name) for name in "abc")
            s, t = Stream(), Stream()
            with c.reading(s):
                got = s.fetch(low(c))
            with a.writing(t):
                t.fill(low(a), 5)
            assert not s.idle() and not t.idle() and not os.path.exists("go")
            say()
            s.finish(); t.finish()
            assert (got == 9).all()
        ''')
        heard(child)
        touch("go")
        ended(child)
        assert (got == 0).all()
        a.wait()
        assert (a.to("cpu").numpy() == 5).all() and (c.to("cpu").numpy() == 9).all()
    """)


@on_the_double
def test_work_on_several_arrays_asks_the_gpu_for_one_wait_and_one_value(program):
    program(
        FAULTS
        + """
arrays = [cw.put(f"one/{i}", cw.zeros(1000, "u1", device="cuda:0")) for i in range(5)]
child = other('''if True:
    arrays = [cw.get(f"one/{i}") for i in range(5)]
    s, t = Stream(), Stream()
    with cw.work(s, writes=arrays[:3]):
        s.hold("go")
    with cw.work(t, writes=arrays[3:]):
        t.hold("go")
    say(); s.finish(); t.finish(); sys.stdin.read()
''')
heard(child)
s = Stream()
with cw.work(s, reads=arrays[0]):  # the page of the fences is known from here on
    pass
faults("cuStreamWaitValue64=INVALID_VALUE,cuStreamBatchMemOp=INVALID_VALUE,cuStreamWriteValue64@2=INVALID_VALUE")
with cw.work(s, reads=arrays[:2]):  # the stream waits for that already
    pass
faults("cuStreamBatchMemOp@2=INVALID_VALUE,cuStreamWaitValue64=INVALID_VALUE,cuStreamWriteValue64@2=INVALID_VALUE")
t = Stream()
with cw.work(t, reads=arrays):  # two fences, one call
    got = t.fetch(low(arrays[4]))
assert not t.idle()
u = Stream()
faults("cuStreamWriteValue64@2=INVALID_VALUE,cuStreamBatchMemOp=INVALID_VALUE")
with cw.work(u, reads=arrays[:3]):  # one fence
    pass
touch("go")
for stream in (s, t, u): stream.finish()
child.stdin.close()
ended(child)
"""
    )


def test_two_processes_that_begin_on_the_same_arrays_never_wait_in_a_circle(program):
    program("""
        names = [f"circle/{i}" for i in range(4)]
        arrays = [cw.put(name, cw.zeros(1000, "u1", device="cuda:0")) for name in names]
        text = '''if True:
            import random
            arrays = [cw.get(f"circle/{i}") for i in range(4)]
            s, chance = Stream(), random.Random(int(sys.stdin.readline()))
            for i in range(150):
                mixed = chance.sample(arrays, 4)
                with cw.work(s, reads=mixed[:2], writes=mixed[2:], timeout=30):
                    s.fill(low(mixed[2]), i % 200)
            s.finish()
        '''
        children = [other(text) for _ in range(3)]
        for i, child in enumerate(children):
            child.stdin.write(f"{i}\\n"); child.stdin.flush()
        for child in children: ended(child)
        for w in arrays: w.wait(timeout=10)
    """)


def test_an_array_given_twice_or_in_parts_counts_once(program):
    program("""
        w = cw.zeros(1000, "u1", device="cuda:0")
        s = Stream()
        with cw.work(s, reads=[w, w[:10]], writes=[w[10:20], w]):
            s.fill(low(w), 4)
        w.wait()
        with cw.work(s), cw.work(s, reads=cw.zeros(3), writes=[cw.zeros(4)]):
            pass
        again = cw.work(s, reads=w)
        for _ in range(3):
            with again: pass
        with again:
            try: again.__enter__()
            except ValueError as error: assert "begun already" in str(error)
            else: raise SystemExit("entered twice")
    """)


def test_work_that_cannot_begin_leaves_all_as_it_was(program):
    program("""
        a, b = (cw.zeros(1000, "u1", device="cuda:0") for _ in range(2))
        s, t = Stream(), Stream()
        with b.writing(s):
            try:
                with cw.work(t, reads=[a], writes=[b], timeout=0.05): pass
            except ValueError as error: assert "wait for itself" in str(error), error
            else: raise SystemExit("began")
        for w in (a, b):
            with w.writing(t, timeout=5): pass
        cw.put("ro", a)
        ro = cw.get("ro", readonly=True)
        try:
            with cw.work(t, reads=b, writes=ro): pass
        except ValueError as error: assert "read-only" in str(error)
        else: raise SystemExit("wrote what is read-only")
        child = other('''if True:
            a = cw.get("ro"); s = Stream()
            with a.writing(s):
                say()
                sys.stdin.read()
        ''')
        heard(child)
        try:
            with cw.work(t, reads=b, writes=a, timeout=0.1): pass
        except cw.Timeout: pass
        else: raise SystemExit("no timeout")
        with b.writing(s, timeout=5): pass  # its reading was taken back
        child.stdin.close(); ended(child)
        with cw.work(t, reads=b, writes=a, timeout=5): pass
    """)


def test_work_whose_producer_died_is_told_and_nothing_is_begun(program):
    program("""
        a, b = (cw.put(name, cw.zeros(1000, "u1", device="cuda:0")) for name in ("dead/a", "dead/b"))
        child = other('''if True:
            b, s = cw.get("dead/b"), Stream()
            with b.writing(s):
                s.hold("never")
                s.fill(low(b), 5)
            say()
            time.sleep(60)
        ''')
        heard(child)
        child.kill(); child.wait()
        s = Stream()
        end = time.monotonic() + 20
        while True:
            try:
                with cw.work(s, reads=[a, b], timeout=20): pass
            except cw.ProducerDied: break
            assert time.monotonic() < end
        with a.writing(s, timeout=5): pass
        with cw.work(s, reads=a, writes=b, whole=True, timeout=20): s.fill(low(b), 1)
        b.wait()
    """)


# ---- many copies


def test_many_copies_go_as_one_piece_of_work(program):
    program("""
        rng = np.random.default_rng(5)
        values = [rng.integers(0, 255, rng.integers(1, 3000), "u1") for _ in range(300)]
        of = [cw.asarray(x, device="cuda:0") for x in values]
        to = [cw.zeros(x.shape, "u1", device=f"cuda:{i % min(2, len(cw.devices()) - 1)}") for i, x in enumerate(values)]
        cw.copy(zip(to, of))
        for w, x in zip(to, values): assert (w.to("cpu").numpy() == x).all()
        s, back = Stream(), [cw.zeros(x.shape, "u1", device="cuda:0") for x in values]
        s.hold("go")
        cw.copy(zip(back, to), stream=s)
        assert not s.idle()
        touch("go")
        for w, x in zip(back, values): assert (w.to("cpu").numpy() == x).all()
        host = [cw.zeros(x.shape, "u1") for x in values]
        cw.copy(zip(host, back))
        for w, x in zip(host, values): assert (w.numpy() == x).all()
        cw.copy([(b, h) for b, h in zip(back, reversed(host)) if b.shape == h.shape])
        cw.copy([])
        big = cw.zeros((100, 10), "f4", device="cuda:0")
        rows = [cw.full(10, float(i), "f4", device="cuda:0") for i in range(100)]
        cw.copy((big[i], row) for i, row in enumerate(rows))
        assert (big.to("cpu").numpy() == np.arange(100)[:, None]).all()
    """)


@on_the_double
def test_many_copies_are_one_call_of_the_driver(program):
    program(
        FAULTS
        + """
of = [cw.full(100, i, "u1", device="cuda:0") for i in range(50)]
to = [cw.zeros(100, "u1", device="cuda:0") for i in range(50)]
faults("cuMemcpyDtoDAsync=INVALID_VALUE,cuMemcpyBatchAsync@2=INVALID_VALUE,cuStreamWriteValue64@2=INVALID_VALUE")
cw.copy(zip(to, of))
faults("")
assert all((w.to("cpu").numpy() == i).all() for i, w in enumerate(to))
"""
    )


@on_the_double
def test_many_copies_where_the_driver_has_no_call_for_them(script, tmp_path):
    import os

    env = {**os.environ, **cuda_support.double(tmp_path / "old", no_batch=1)}
    script(
        """
        import cableway as cw
        of = [cw.full(100, i, "u1", device="cuda:0") for i in range(50)]
        to = [cw.zeros(100, "u1", device="cuda:1") for i in range(50)]
        cw.copy(zip(to, of))
        assert all((w.to("cpu").numpy() == i).all() for i, w in enumerate(to))
        """,
        env=env,
    )


@on_the_double
def test_gpus_that_are_no_peers_copy_many_all_the_same(script, tmp_path):
    import os

    env = {**os.environ, **cuda_support.double(tmp_path / "apart", no_peer="all")}
    script(
        """
        import cableway as cw
        of = [cw.full(100, i, "u1", device="cuda:0") for i in range(20)]
        to = [cw.zeros(100, "u1", device=f"cuda:{i % 2}") for i in range(20)]
        cw.copy(zip(to, of))
        assert all((w.to("cpu").numpy() == i).all() for i, w in enumerate(to))
        """,
        env=env,
    )


@on_the_double
@pytest.mark.parametrize("batch", [True, False])
def test_copies_that_fail_in_the_midst_are_not_taken_for_complete(program, batch):
    no_batch = "" if batch else "cuMemcpyBatchAsync=NOT_SUPPORTED,"
    fault = "cuMemcpyBatchAsync=OUT_OF_MEMORY" if batch else "cuMemcpyDtoDAsync@3=OUT_OF_MEMORY"
    program(
        FAULTS
        + f"""
of = [cw.full(100, i, "u1", device="cuda:0") for i in range(5)]
to = [cw.put(f"midst/{batch}/{{i}}", cw.zeros(100, "u1", device="cuda:0")) for i in range(5)]
faults("{no_batch}{fault}")
try: cw.copy(zip(to, of))
except (cw.DeviceError, cw.LimitExceeded) as error: assert "OUT_OF_MEMORY" in str(error), error
else: raise SystemExit("no error")
faults("")
for w in to:
    try: w.wait(timeout=5)
    except cw.ProducerDied: pass
    else: raise SystemExit("announced")
child = other('''if True:
    for i in range(5):
        try: cw.get(f"midst/{batch}/{{i}}").to("cpu")
        except cw.ProducerDied: pass
        else: raise SystemExit("announced")
''')
ended(child)
for w in of: w.wait(timeout=5)
s = Stream()
with cw.work(s, writes=to, whole=True):
    for w in to: s.fill(low(w), 1)
cw.copy(zip(to, of))
assert all((w.to("cpu").numpy() == i).all() for i, w in enumerate(to))
"""
    )


BESIDE = """
n = 9 << 20  # more than what goes on one stream (BESIDE_BYTES in ipc/array/copy_batch.c)
of = [cw.full(n, 7, "u1", device=f"cuda:{i}") for i in (0, 1)]
to = [cw.put(f"beside/{i}", cw.zeros(n, "u1", device="cuda:0")) for i in (0, 1)]
"""


@cuda_support.second_gpu
def test_what_stays_on_a_gpu_is_copied_beside_what_comes_from_another(program):
    program(
        BESIDE
        + """
for value in range(3):
    for w in of: w.copy_from(np.full(n, value, "u1"))
    cw.copy(zip(to, of))
    assert all((w.to("cpu").numpy() == value).all() for w in to)
"""
    )


@on_the_double
@pytest.mark.parametrize(
    "call",
    ["cuEventCreate", "cuEventRecord", "cuEventRecord@2", "cuStreamWaitEvent", "cuStreamWaitEvent@2", "cuMemcpyDtoDAsync",
     "cuMemcpyDtoDAsync@2"],
)  # fmt: skip
def test_two_streams_of_which_one_fails_are_not_taken_for_complete(program, call):
    program(
        FAULTS
        + BESIDE
        + f"""
faults("{call}=OUT_OF_MEMORY")
try: cw.copy(zip(to, of))
except (cw.DeviceError, cw.LimitExceeded) as error: assert "OUT_OF_MEMORY" in str(error), error
else: raise SystemExit("no error")
faults("")
for w in to:
    try: w.wait(timeout=5)
    except cw.ProducerDied: pass
    else: raise SystemExit("announced")
s = Stream()
with cw.work(s, writes=to, whole=True):
    for w in to: s.fill(low(w), 1)
cw.copy(zip(to, of))
assert all((w.to("cpu").numpy() == 7).all() for w in to)
"""
    )


def test_pairs_that_cannot_be_are_refused_before_anything_is_copied(program):
    program("""
        a, b = cw.zeros(10, "u1", device="cuda:0"), cw.full(10, 3, "u1", device="cuda:0")
        c = cw.full(10, 4, "u1", device="cuda:0")
        def refused(pairs, words, error=ValueError, **options):
            try: cw.copy([(a, b), *pairs], **options)
            except error as told: assert words in str(told), told
            else: raise SystemExit(f"not refused: {words}")
            assert (a.to("cpu").numpy() == 0).all()
        refused([(c, cw.zeros(11, "u1", device="cuda:0"))], "pair 1: shapes")
        refused([(c, cw.zeros(10, "i1", device="cuda:0"))], "dtypes")
        refused([(c, np.zeros(10))], "copy_from()", TypeError)
        refused([(c[::2], b[::2])], "gaps")
        refused([(a, c)], "overlap")
        refused([(c, a)], "overlap")
        refused([(a[5:], c[5:])], "overlap")
        refused([(b[:5], c[:5])], "overlap")
        refused([(c, cw.zeros(10, "u1"))], "pair 1: `stream=` needs", stream=Stream())
        cw.put("pairs/ro", c)
        refused([(cw.get("pairs/ro", readonly=True), b)], "read-only")
        cw.copy([(a, b), (c[:5], b[:5]), (c[5:], b[:5])])  # a source may serve often
        assert (a.to("cpu").numpy() == 3).all() and (c.to("cpu").numpy() == 3).all()
        s = Stream()
        with a.writing(s):
            try: cw.copy([(c, a)], stream=Stream())
            except ValueError as told: assert "wait for itself" in str(told)
            else: raise SystemExit("it would have hung")
    """)


def test_pairs_of_all_kinds_are_copied_in_one_call():
    """Some are looked at in C and some in Python: parts, whole arrays, ones that were just found, other shapes between."""
    rng = np.random.default_rng(5)
    for n in range(40):
        cw.put(f"pairs/{n}", rng.random((3, 4)))
    of = [cw.get(f"pairs/{n}") for n in range(40)]
    rows = cw.asarray(rng.random((40, 3, 4)))
    to, parts = [cw.zeros((3, 4)) for _ in of], cw.zeros((40, 3, 4))
    turned = cw.zeros((3, 4), order="F"), cw.asarray(np.asfortranarray(rng.random((3, 4))))
    pairs = [*zip(to, of, strict=True), *((parts[i], rows[i]) for i in range(40)), turned]
    rng.shuffle(pairs)
    cw.copy(map(tuple, pairs))
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(to, of, strict=True))
    assert np.array_equal(parts.numpy(), rows.numpy())
    assert np.array_equal(turned[0].numpy(), turned[1].numpy())
    with pytest.raises(ValueError, match="pair 2: shapes"):
        cw.copy([(to[0], of[0]), (to[1], of[1]), (to[2], rows)])
    to[3].close()
    with pytest.raises(ValueError, match="closed"):
        cw.copy([(to[0], of[0]), (to[3], of[3])])


def test_many_copies_on_the_host():
    rng = np.random.default_rng(3)
    values = [rng.random(n) for n in range(20)]
    of = [cw.asarray(x) for x in values]
    to = [cw.zeros(x.shape) for x in values]
    cw.copy(zip(to, of, strict=True))
    assert all(np.array_equal(w.numpy(), x) for w, x in zip(to, values, strict=True))
    with pytest.raises(ValueError, match="overlap"):
        cw.copy([(to[5], of[5]), (of[5], of[5])])


def test_pairs_are_refused_just_where_they_overlap():
    """Parts of one array at random, beside what comparing every target with every other part says."""
    rng = np.random.default_rng(11)
    memory, told = cw.zeros(100, "u1"), {True: 0, False: 0}
    for _ in range(400):
        pairs = []
        for _ in range(rng.integers(1, 5)):
            size, (to, of) = int(rng.integers(1, 8)), rng.integers(0, 92, 2).tolist()
            pairs.append((range(to, to + size), range(of, of + size)))
        meets = lambda one, other: max(one.start, other.start) < min(one.stop, other.stop)  # noqa: E731
        overlap = any(
            meets(to, of) or (i != j and meets(to, other))
            for i, (to, _) in enumerate(pairs)
            for j, (other, of) in enumerate(pairs)
        )
        told[overlap] += 1
        values = rng.integers(0, 256, 100, "u1")
        memory[:] = values
        given = [tuple(memory[part.start : part.stop] for part in pair) for pair in pairs]
        if overlap:
            with pytest.raises(ValueError, match="overlap"):
                cw.copy(given)
        else:
            cw.copy(given)
            for to, of in pairs:
                values[to.start : to.stop] = values[of.start : of.stop]
        assert np.array_equal(memory.numpy(), values)
    assert min(told.values()) > 50, told
