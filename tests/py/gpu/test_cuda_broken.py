"""A GPU context that breaks while its process lives on: who waits for its work is told, as if it had died.

A kernel's illegal address breaks one on a real GPU; the test double breaks one on demand. The process itself finds out
at its next call of the driver.
"""

from __future__ import annotations

import cuda_programs
import cuda_support
import pytest

cuda_support.require()
if cuda_support.REAL:
    pytest.skip("breaks contexts by faults of the test double", allow_module_level=True)

# A child that writes the array "w" until it is told to break; its context is broken by what it then submits.
BREAKS = """
FAULTY = '''if True:
    import ctypes
    def faults(text): assert cuda.fakecuda_faults(text.encode()) == 0
    def told(action, error, words=""):
        try: action()
        except error as found: assert words in str(found), found
        else: raise SystemExit(f"no {error.__name__}")
'''
"""


gpus = cuda_support.for_module()
program = cuda_programs.program


def test_a_consumer_is_told_when_the_producers_context_breaks(program):
    program(
        BREAKS
        + """
w = cw.put("broken/w", cw.zeros(1000, "u1", device="cuda:0"))
good = cw.put("broken/good", cw.zeros(1000, "u1", device="cuda:0"))
child = other(FAULTY + '''if True:
    w, good, s = cw.get("broken/w"), cw.get("broken/good"), Stream()
    with good.writing(s, whole=True):
        s.fill(low(good), 3)
    good.wait()
    with w.writing(s, whole=True):
        s.hold("go")
        faults("fill@1=ILLEGAL_ADDRESS")
        s.fill(low(w), 7)
    say()
    told(lambda: w.wait(timeout=20), cw.ProducerDied)   # it does not wait for itself
    told(lambda: w.writing(s).__enter__(), cw.DeviceError, "CUDA_ERROR_ILLEGAL_ADDRESS")
    told(lambda: good.to("cpu"), cw.DeviceError, "CUDA_ERROR_ILLEGAL_ADDRESS")
    say("told")
    sys.stdin.read()                                    # and lives on
''')
heard(child)
s = Stream()
with w.reading(s):                                      # waits on the GPU
    s.fetch(low(w))
assert not s.idle()
touch("go")
heard(child, "told")
s.finish()
try:
    with w.reading(s): pass
except cw.ProducerDied: pass
else: raise SystemExit("not told")
try: w.wait(timeout=20)
except cw.ProducerDied: pass
else: raise SystemExit("not told")
assert (good.to("cpu").numpy() == 3).all()              # what was complete stays good
t = Stream()
with w.writing(t, whole=True, timeout=20):              # when nothing of it can land any more
    t.fill(low(w), 1)
assert (w.to("cpu").numpy() == 1).all()
assert child.poll() is None
child.stdin.close()
ended(child)
"""
    )


def test_work_in_an_open_section_is_given_up(program):
    program(
        BREAKS
        + """
a, b = (cw.put(f"open/{n}", cw.zeros(1000, "u1", device="cuda:0")) for n in "ab")
child = other(FAULTY + '''if True:
    a, b, s = cw.get("open/a"), cw.get("open/b"), Stream()
    section, several = a.writing(s), cw.work(s, reads=a, writes=b)
    section.__enter__(); several.__enter__()
    faults("fill@1=LAUNCH_FAILED")
    s.fill(low(a), 7)
    while s.idle() or cuda.cuStreamQuery(s.handle) == 600: time.sleep(0.01)
    told(lambda: cw.zeros(3, device="cuda:0").to("cpu"), cw.DeviceError, "LAUNCH_FAILED")
    say()
    sys.stdin.readline()
    told(lambda: section.__exit__(None, None, None), cw.DeviceError, "LAUNCH_FAILED")
    told(lambda: several.__exit__(None, None, None), cw.DeviceError, "LAUNCH_FAILED")
    say("told")
    sys.stdin.read()
''')
heard(child)
for w in (a, b):                                        # its turns are free, what it wrote is marked
    try: w.wait(timeout=20)
    except cw.ProducerDied: pass
    else: raise SystemExit("not told")
s = Stream()
with cw.work(s, writes=[a, b], whole=True, timeout=20):
    s.fill(low(a), 1); s.fill(low(b), 2)
child.stdin.write("\\n"); child.stdin.flush()
heard(child, "told")                                    # and gives nobody else's turn back
assert (a.to("cpu").numpy() == 1).all() and (b.to("cpu").numpy() == 2).all()
child.stdin.close()
ended(child)
"""
    )


def test_its_other_gpu_goes_on(program):
    program(
        BREAKS
        + """
x, y = (cw.put(f"both/{i}", cw.zeros(1000, "u1", device=f"cuda:{i}")) for i in range(2))
child = other(FAULTY + '''if True:
    x, y, s = cw.get("both/0"), cw.get("both/1"), Stream()
    context, t = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(t), 1)
    with y.writing(t.value, whole=True): pass
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    try:
        with x.writing(s, whole=True):
            faults("fill@1=ILLEGAL_ADDRESS")
            s.fill(low(x), 7)
    except cw.DeviceError: pass                         # broken before the end
    told(lambda: x.wait(timeout=20), cw.ProducerDied)
    for _ in range(3):
        with y.writing(t.value, whole=True): pass
    y.wait(timeout=20)
    z = cw.full(100, 5, "u1", device="cuda:1")
    assert (z.to("cpu").numpy() == 5).all()
    say()
    sys.stdin.read()
''')
heard(child)
y.wait(timeout=20)
try: x.wait(timeout=20)
except cw.ProducerDied: pass
else: raise SystemExit("not told")
child.stdin.close()
ended(child)
"""
    )


def test_nobody_waits_for_a_broker_that_stands_still(program):
    """Nothing is asked of it on the way: see also test_client_broker.c, where its ring is full."""
    program(
        BREAKS
        + """
import pathlib, threading
exec(FAULTY)
w, s = cw.zeros(1000, "u1", device="cuda:0"), Stream()
cw.put("anything", cw.zeros(3))
with w.writing(s, whole=True): s.fill(low(w), 6)        # its page of fences is there
w.wait()
[lock] = pathlib.Path(os.environ["CABLEWAY_DIR"]).glob("*.lock")
broker = int(lock.read_text().split()[0])
went_on = []
def go_on():                                            # else a failure would leave it standing
    went_on.append(1); os.kill(broker, signal.SIGCONT)
os.kill(broker, signal.SIGSTOP)
timer = threading.Timer(20, go_on); timer.daemon = True; timer.start()
try:
    with w.writing(s, whole=True):
        faults("fill@1=ILLEGAL_ADDRESS")
        s.fill(low(w), 7)
except cw.DeviceError: pass                             # broken before the end
told(lambda: w.wait(timeout=5), cw.ProducerDied)
told(lambda: w.wait(timeout=5), cw.ProducerDied)
assert not went_on
timer.cancel()
os.kill(broker, signal.SIGCONT)
told(lambda: w.wait(timeout=5), cw.ProducerDied)
assert cw.get("anything").shape == (3,)                 # and the broker goes on with us
"""
    )


@pytest.mark.parametrize("error", ["ECC_UNCORRECTABLE", "ASSERT", "MISALIGNED_ADDRESS", "UNKNOWN"])
def test_every_error_that_stays_is_one(program, error):
    program(
        BREAKS
        + f"""
exec(FAULTY)
w, s = cw.zeros(1000, "u1", device="cuda:0"), Stream()
try:
    with w.writing(s, whole=True):
        faults("fill@1={error}")
        s.fill(low(w), 7)
except cw.DeviceError: pass                             # broken before the end
told(lambda: w.wait(timeout=20), cw.ProducerDied)
told(lambda: w.reading(s).__enter__(), cw.DeviceError, "CUDA_ERROR_{error}")
h = cw.full(3, 2.0)
assert h.numpy().sum() == 6                             # host memory has nothing to do with it
"""
    )


def test_an_error_that_passes_is_none(program):
    program(
        BREAKS
        + """
exec(FAULTY)
w, s = cw.zeros(1000, "u1", device="cuda:0"), Stream()
faults("cuMemCreate@1=OUT_OF_MEMORY,cuMemcpyDtoHAsync@1=LAUNCH_OUT_OF_RESOURCES")
told(lambda: cw.zeros(900 << 20, "u1", device="cuda:0"), cw.LimitExceeded)
told(lambda: w.to("cpu"), cw.DeviceError)
with w.writing(s, whole=True): s.fill(low(w), 7)
assert (w.to("cpu").numpy() == 7).all()
"""
    )
