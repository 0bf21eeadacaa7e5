"""Trees on GPUs whose publisher writes them in place: readers in a section see all of an update or nothing, and are told of a death."""

from __future__ import annotations

import cuda_programs
import cuda_support
import pytest

cuda_support.require()

gpus = cuda_support.for_module()
program = cuda_programs.program

STATE = """
def state(value):
    weight = np.full((64, 32), value, "f4")
    return {"a.weight": weight, "b.bias": np.full(7, value, "f8"), "tied": weight}
def values(tree):
    "Of all leaves, read in one section."
    copies = [(cw.empty(x.shape, x.dtype, device="cuda:0"), x) for x in tree.values()]
    cw.copy(copies)
    return {float(v) for x, _ in copies for v in np.unique(x.to("cpu").numpy())}
"""


def test_new_values_at_the_same_addresses_in_the_same_version(program):
    program(
        STATE
        + """
t = cw.put("m", state(1.0), device="cuda:0", seal=False)
child = other('''
t = cw.get("m")
w = t["a.weight"]
assert w.readonly and t.content_hash == 0 and t.verify() == 0
say()
sys.stdin.readline()
assert (w.to("cpu").numpy() == 2).all() and (t["b.bias"].to("cpu").numpy() == 1).all()
assert t.newer() is None and low(t["a.weight"]) == low(w)
try:
    t.update({"a.weight": np.zeros((64, 32), "f4")})
except ValueError as error:
    assert "seal=False" in str(error)
else:
    raise AssertionError("a reader wrote")
''')
heard(child)
t.update({"a": {"weight": np.full((64, 32), 2.0, "f4")}})
child.stdin.write("\\n")
child.stdin.close()
ended(child)
t.update(state(3.0))
assert values(t) == {3.0} and t.ties() == {"tied": "a.weight"}
"""
    )


def test_what_is_refused_has_changed_nothing(program):
    program(
        STATE
        + """
t = cw.put("m", {**state(1.0), "none": np.ones(0, "f4")}, device="cuda:0", seal=False)
good = np.full((64, 32), 2.0, "f4")
refused = [
    ({"a.weight": good, "x": good}, KeyError, "no leaf 'x'"),
    ({"a.weight": good, "b.bias": np.ones(8)}, ValueError, '"b.bias" has the shape (7,)'),
    ({"a.weight": good, "b.bias": np.ones(7, "f4")}, ValueError, "float64"),
    ({"a.weight": good, "tied": 2 * good}, ValueError, 'tied to "a.weight"'),
    ({"a.weight": good, "none": np.ones(1, "f4")}, ValueError, '"none"'),
]
for given, kind, text in refused:
    try:
        t.update(given)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
t.update({})
t.update({"none": np.ones(0, "f4")})
assert values(t) == {1.0}
t.update({"a.weight": good, "tied": good})                       # tied and the same
assert (t["tied"].to("cpu").numpy() == 2).all()
for name in ("sealed", "m"):
    sealed = cw.put(name, {"w": good}, device="cuda:0")
    try:
        sealed.update({"w": good})
    except ValueError as error:
        assert "seal=False" in str(error)
    else:
        raise AssertionError("it is sealed")
"""
    )


def test_two_values_of_one_memory_are_written_to_two_leaves(program):
    program("""
t = cw.put("m", {"a": np.zeros(4), "b": np.zeros(4)}, device="cuda:0", seal=False)
same = np.ones(4)
t.update({"a": same, "b": same})
assert t["a"].to("cpu").numpy().sum() == t["b"].to("cpu").numpy().sum() == 4
""")


def test_a_published_copy_of_its_leaves_does_not_change(program):
    program("""
t = cw.put("m", {"w": np.ones(1000)}, device="cuda:0", seal=False)
best = cw.put("best", {"w": cw.get("m")["w"]})
t.update({"w": np.zeros(1000)})
assert best["w"].to("cpu").numpy().sum() == 1000 and t["w"].to("cpu").numpy().sum() == 0
""")


def test_memory_that_is_sealed_by_another_put_is_not_written(program):
    program("""
w = cw.full(1000, 1.0, device="cuda:0")
t = cw.put("m", {"w": w}, copy=False, seal=False)
t.update({"w": np.full(1000, 2.0)})
assert w.to("cpu").numpy()[0] == 2
s = cw.put("s", {"w": w}, copy=False)
try:
    t.update({"w": np.full(1000, 3.0)})
except ValueError as error:
    assert "published a second time" in str(error)
assert s["w"].to("cpu").numpy()[0] == 2
""")


def test_it_cannot_be_swapped_nor_swapped_in(program):
    program("""
big = np.zeros(1 << 20, "f8")
cw.put("m", {"w": big}, device="cuda:0")
t = cw.get("m", swappable=True)
cw.put("m", {"w": big}, device="cuda:0", seal=False, keep=True)
for call in (lambda: cw.get("m", swappable=True), t.swap):
    try:
        call()
    except ValueError as error:
        assert "seal=False" in str(error), error
    else:
        raise AssertionError("it was mapped")
assert t.state == "mapped"
""")


def test_a_stream_writes_when_its_turn_comes_and_readers_wait_for_it(program):
    program(
        STATE
        + """
t = cw.put("m", state(1.0), device="cuda:0", seal=False)
new = {"a.weight": cw.full((64, 32), 5, "f4", device="cuda:0"), "b.bias": cw.full(7, 5, "f8", device="cuda:0")}
stream, reader = Stream(), Stream()
stream.hold("go")
t.update(new, stream=stream.handle.value)          # returns at once
w = t["a.weight"]
with w.reading(reader.handle.value):
    seen = reader.fetch(low(w))
assert not reader.idle()
new.clear()                                        # the values stay until they are copied
touch("go")
reader.finish()
assert (seen == w.to("cpu").numpy().view("u1").ravel()[:1000]).all() and values(t) == {5.0}
"""
    )


def test_a_writer_that_dies_before_its_update_is_complete_is_told_to_readers(program):
    program(
        STATE
        + """
child = other('''
t = cw.put("m", {"a": np.ones(1000, "u1"), "b": np.ones(1000, "u1")}, device="cuda:0", seal=False, keep=True)
new = cw.full(1000, 2, "u1", device="cuda:0")
say()
sys.stdin.readline()
stream = Stream()
stream.hold("never")
t.update({"a": new}, stream=stream.handle.value)
say("begun")
sys.stdin.readline()
''')
heard(child)
t = cw.get("m")
assert t["a"].to("cpu").numpy()[0] == 1
child.stdin.write("\\n")
child.stdin.flush()
heard(child, "begun")
child.kill()
child.wait()
for path in ("a", "b"):                            # they lie in one piece of memory
    try:
        t[path].wait()
    except cw.ProducerDied:
        pass
    else:
        raise AssertionError("nobody was told")
cw.put("m", state(4.0), device="cuda:0")           # a new version is whole
assert values(t.newer()) == {4.0}
"""
    )


@pytest.mark.timeout(300)
def test_a_writer_killed_at_any_moment_leaves_one_update_or_tells_readers(program):
    program(
        f"COMMAND = {str(cuda_support.COMMAND)!r}"
        + STATE
        + """
import json, random
def gpu_bytes():
    told = json.loads(subprocess.run([COMMAND, "status", "--json"], capture_output=True, text=True, check=True).stdout)
    return told["gauges"]["gpu_bytes"]
seed = random.randrange(1 << 30)
print("seed", seed)
chance, told, whole, own_bytes = random.Random(seed), 0, 0, None
for _ in range(20):
    writer = other('''
import itertools
def state(value):
    return {str(i): np.full(20000, value, "f4") for i in range(8)}
t = cw.put("m", state(0), device="cuda:0", seal=False, keep=True)
stream = Stream()
say()
for value in itertools.count(1):
    if value % 2:
        t.update(state(value))
    else:
        t.update({k: cw.asarray(v, device="cuda:0") for k, v in state(value).items()}, stream=stream.handle.value)
''')
    heard(writer)
    t = cw.get("m")
    for _ in range(chance.randrange(3)):
        assert len(values(t)) == 1
    time.sleep(chance.random() / 20)               # which moment it is, not whether the test is right
    writer.kill()
    writer.wait()
    try:
        assert len(values(t)) == 1
        whole += 1
    except cw.ProducerDied:
        told += 1
    cw.remove("m")
    t.close()
    del t
    if own_bytes is None:                          # what this process read into stays with it
        time.sleep(1)
        own_bytes = gpu_bytes()
    begun = time.monotonic()
    while gpu_bytes() > own_bytes and time.monotonic() - begun < 1: time.sleep(0.01)
    assert gpu_bytes() == own_bytes
print(whole, "times whole,", told, "times told")
"""
    )
