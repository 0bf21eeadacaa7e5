"""Trees in GPU memory: published when the writers are done, read-only to the GPU, freed with the last reader. Runs in `make test-more`."""

from __future__ import annotations

import cuda_programs
import cuda_support

cuda_support.require()
two = cuda_support.second_gpu

gpus = cuda_support.for_module()
program = cuda_programs.program

STATE = """
def state(value, device="cuda:0"):
    return {"a.weight": cw.full((64, 32), value, "f4", device=device), "b.bias": cw.full(7, value, "f8", device=device)}
"""


def test_a_tree_on_a_gpu_comes_back_in_another_process(program):
    program(
        STATE
        + """
t = cw.put("m", state(3.0), meta={"k": 1}, keep=True)
assert t.device == "cuda:0" and t.nbytes == 64 * 32 * 4 + 56 and t.content_hash == 0
child = other('''
t = cw.get("m")
assert t.device == "cuda:0" and list(t) == ["a.weight", "b.bias"] and t.meta == {"k": 1}
w = t["a.weight"]
assert w.device == "cuda:0" and w.readonly and w.shape == (64, 32)
assert (w.to("cpu").numpy() == 3).all() and (t["b.bias"].to("cpu").numpy() == 3).all()
assert low(w) % 256 == 0 and cw.names() == ["m"]
say()
''')
heard(child)
ended(child)
"""
    )


def test_host_arrays_go_to_the_gpu_that_is_named(program):
    program("""
t = cw.put("m", {"w": np.arange(5.0), "n": {"x": np.ones(3, "i2")}}, device="cuda:0")
assert t.device == "cuda:0"
assert t["w"].to("cpu").numpy().tolist() == [0, 1, 2, 3, 4] and t["n.x"].to("cpu").numpy().sum() == 3
""")


def test_it_is_seen_when_the_last_write_is_complete_and_not_before(program):
    program("""
import threading
stream = Stream()
w = cw.zeros(1000, "u1", device="cuda:0")
with w.writing(stream.handle.value):
    stream.hold("go")
    stream.fill(low(w), 7)
maker = threading.Thread(target=lambda: cw.put("m", {"w": w}, copy=False))
maker.start()
assert "m" not in cw.names()
touch("go")
maker.join()
assert (cw.get("m")["w"].to("cpu").numpy() == 7).all()
""")


def test_a_signal_while_the_writers_are_waited_for_is_served_and_the_tree_is_put(program):
    program("""
import threading
stream = Stream()
w = cw.zeros(1000, "u1", device="cuda:0")
with w.writing(stream.handle.value):
    stream.hold("go")
    stream.fill(low(w), 7)
served = []
def serve(*_):
    served.append(1)
    touch("go")
signal.signal(signal.SIGALRM, serve)
main = threading.main_thread().ident
def knock():
    while not served:                            # until one comes while it waits: those before end nothing
        signal.pthread_kill(main, signal.SIGALRM)
        time.sleep(0.01)
threading.Timer(0.05, knock).start()
t = cw.put("m", {"w": w}, copy=False)
assert served and (t["w"].to("cpu").numpy() == 7).all()
""")


def test_who_publishes_what_a_dead_process_never_finished_is_told(program):
    program("""
child = other('''
stream = Stream()
w = cw.put("w", cw.zeros(1000, "u1", device="cuda:0"), keep=True)
say()
with w.writing(stream.handle.value):
    stream.hold("never")
    stream.fill(low(w), 7)
    say("begun")
    os.kill(os.getpid(), signal.SIGKILL)
''')
heard(child)
heard(child, "begun")
w = cw.get("w")
child.wait()
try:
    cw.put("m", {"w": w}, copy=False)
except cw.ProducerDied:
    pass
else:
    raise AssertionError("it was published")
assert "m" not in cw.names()
""")


def test_memory_of_ours_is_published_without_a_copy(program):
    program(
        STATE
        + """
given = state(2.0)
t = cw.put("m", given, copy=False)
assert len(t) == 2 and low(t["a.weight"]) and t.ties() == {}
cw.copy([(given["b.bias"], cw.full(7, 9.0, device="cuda:0"))])   # who had it writable still has: documented
assert t["b.bias"].to("cpu").numpy()[0] == 9
"""
    )


FOREIGN = """
import threading
class Foreign:
    def __init__(self, array, begin, count):
        told = dict(array.__cuda_array_interface__)
        told.update(shape=(count,), data=(told["data"][0] + begin, False), strides=None, stream=stream.handle.value)
        self.__cuda_array_interface__, self.keeps = told, array
stream = Stream()
whole = cw.full(4096, 3, "u1", device="cuda:0")
leaves = {str(i): Foreign(whole, i * 256, 256) for i in range(16)}
"""


def test_what_is_published_can_be_published_again_by_its_library(program):
    program(
        FOREIGN
        + """
for name in ("m", "m", "other"):
    t = cw.put(name, leaves, copy=False)
    assert t["7"].to("cpu").numpy().tolist() == [3] * 256
other, m = cw.get("other"), cw.get("m")
assert low(other["1"]) == low(m["0"]) == low(whole)  # nothing was copied
"""
    )


def test_arrays_in_one_piece_of_memory_are_ordered_once(program):
    program(
        FOREIGN
        + """
times, writing = [], cw.Array.writing
cw.Array.writing = lambda *a, **k: times.append(1) or writing(*a, **k)
stream.hold("go")
stream.fill(low(whole), 9)
threading.Timer(0.2, touch, ["go"]).start()
t = cw.put("m", leaves, copy=False)                # waits for what the stream had begun
assert times == [1] and t["0"].to("cpu").numpy()[0] == 9
"""
    )


def test_a_reader_that_writes_breaks_its_own_context_alone(program):
    program(
        STATE
        + """
t = cw.put("m", state(1.0), keep=True)
child = other('''
Stream()
t = cw.get("m")
w = t["a.weight"]
assert cuda.cuMemsetD8_v2(ctypes.c_uint64(low(w)), ctypes.c_ubyte(9), ctypes.c_size_t(4)) == 1
say()
''')
heard(child)
ended(child)
assert (t["a.weight"].to("cpu").numpy() == 1).all()
"""
    )


def test_its_memory_comes_back_with_the_last_reader(program):
    program(
        f"COMMAND = {str(cuda_support.COMMAND)!r}"
        + """
import json
def gpu_bytes():
    command = COMMAND
    told = json.loads(subprocess.run([command, "status", "--json"], capture_output=True, text=True, check=True).stdout)
    return told["gauges"]["gpu_bytes"]
child = other('''
t = cw.get("m", timeout=30)
t["w"]
say()
sys.stdin.read()
''')
maker = other('''
t = cw.put("m", {"w": np.ones(48 << 20, "u1")}, device="cuda:0", keep=True)
say("put")
''')
heard(maker, "put")
ended(maker)
heard(child)
cw.remove("m")
cw.zeros(1)
assert gpu_bytes() >= 48 << 20
child.kill()
child.wait()
for _ in range(100):
    if gpu_bytes() == 0: break
    time.sleep(0.01)
assert gpu_bytes() == 0
"""
    )


def test_a_publisher_killed_at_any_moment_leaves_a_whole_version_and_no_memory(program):
    program(
        f"COMMAND = {str(cuda_support.COMMAND)!r}"
        + """
import json, random
def gpu_bytes():
    told = json.loads(subprocess.run([COMMAND, "status", "--json"], capture_output=True, text=True, check=True).stdout)
    return told["gauges"]["gpu_bytes"]
chance = random.Random()
for _ in range(6):
    maker = other('''
import itertools
for value in itertools.count(1):
    state = {str(i): np.full(50000, value, "f4") for i in range(8)}
    cw.put("m", state, device="cuda:0", meta=value, keep=True)
    say(str(value))
''')
    for _ in range(chance.randrange(1, 12)):
        maker.stdout.readline()
    maker.kill()
    maker.wait()
    tree = cw.get("m")
    assert {float(v) for x in tree.values() for v in np.unique(x.to("cpu").numpy())} == {float(tree.meta)}
    cw.remove("m")
    tree.close()
    del tree
    for _ in range(100):
        if gpu_bytes() == 0: break
        time.sleep(0.01)
    assert gpu_bytes() == 0
"""
    )


@two
def test_parts_on_two_gpus_are_one_tree(program):
    program(
        STATE
        + """
value = {"rank0": state(1.0), "rank1": state(2.0, "cuda:1"), "host": np.ones(3)}
t = cw.put("m", value, keep=True)
assert t.device == ""
child = other('''
t = cw.get("m")
assert t["rank0.a.weight"].device == "cuda:0" and t["rank1.a.weight"].device == "cuda:1" and t["host"].device == "cpu"
assert (t["rank1.b.bias"].to("cpu").numpy() == 2).all()
say()
''')
heard(child)
ended(child)
"""
    )


def test_hashes_of_gpu_leaves_are_made_where_they_are_wanted(program):
    program(
        STATE
        + """
t = cw.put("m", state(1.0), hashed=True)
assert t.content_hash and t.verify() == 2
host = cw.put("h", {k: v.to("cpu") for k, v in state(1.0).items()})
assert host.content_hash == t.content_hash
"""
    )


def test_the_command_line_writes_and_shows_a_tree_on_a_gpu(program, tmp_path):
    program(
        f"COMMAND = {str(cuda_support.COMMAND)!r}; FILE = {str(tmp_path / 'm.safetensors')!r}"
        + """
import json
def run(*words):
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=True).stdout
whole = np.arange(24, dtype="i4").reshape(4, 6)
on = cw.asarray(whole, device="cuda:0")
large = np.arange(17 << 20, dtype="u4")                       # more bytes than are copied at once
odd = cw.asarray(whole, device="cuda:0")[::-1, 1::2]
state = {"x": on, "odd": odd, "host": cw.asarray(np.ones(3)), "large": cw.asarray(large, device="cuda:0")}
t = cw.put("m", state, meta={"k": "v"}, copy=False)
run("get", "m", FILE)
back = cw.load("back", FILE)
for path, wanted in {"x": whole, "odd": whole[::-1, 1::2], "host": np.ones(3), "large": large}.items():
    assert (back[path].numpy() == wanted).all(), path
told = json.loads(run("stat", "m", "--json", "--leaves"))
gpu = on.device_uuid
assert sorted(told["devices"]) == sorted(["cpu", gpu]) and gpu in run("stat", "m")
devices = {leaf["path"]: leaf["device"] for leaf in told["paths"]}
assert devices == {"x": gpu, "odd": gpu, "large": gpu, "host": "cpu"}
"""
    )


@two
def test_each_process_maps_the_part_of_its_gpu_alone(program):
    program(
        STATE
        + """
value = {"rank0": state(1.0), "rank1": state(2.0, "cuda:1")}
t = cw.put("m", value, keep=True)
children = [other(f'''
import re
t = cw.get("m")
assert not t._leases
w = t["rank{rank}.a.weight"], t["rank{rank}.b.bias"]
assert all(x.device == "cuda:{rank}" for x in w)
assert (w[0].to("cpu").numpy() == {rank} + 1).all()
assert len(t._leases) == 1, t._leases
assert [lease.gpu for lease in t._leases.values()] == [{rank}]
say()
''') for rank in range(2)]
for child in children:
    heard(child)
for child in children:
    ended(child)
"""
    )


@two
def test_ranks_are_published_whole_or_not_at_all_whoever_is_killed(program):
    program("""
import random, signal, subprocess, sys, time
seed = random.randrange(1 << 30)
print("seed", seed)
chance = random.Random(seed)
PUBLISH = '''
import itertools, sys
import numpy as np, cableway as cw
for n in itertools.count(int(sys.argv[1])):
    ranks = {f"rank{r}": {"w": cw.full(5000, n, "f8", device=f"cuda:{r}")} for r in range(2)}
    cw.put("m", ranks, meta=n, keep=True, copy=False)
    print(n, flush=True)
'''
begin = 0
for round_ in range(20):
    maker = subprocess.Popen([sys.executable, "-c", PUBLISH, str(begin)], stdout=subprocess.PIPE, text=True)
    begin = int(maker.stdout.readline()) + 1000
    time.sleep(chance.random() * 0.05)
    maker.kill()
    maker.wait()
    with cw.get("m") as t:
        assert sorted(t) == ["rank0.w", "rank1.w"]
        for rank in range(2):
            w = t[f"rank{rank}.w"]
            assert w.device == f"cuda:{rank}" and (w.to("cpu").numpy() == t.meta).all()
cw.remove("m")
""")


@two
def test_a_tree_goes_to_another_gpu_in_one_copy(program):
    program(
        STATE
        + """
from cableway._array import copies
t = cw.put("m", state(3.0) | {"c": cw.full(1000, 4.0, "f4", device="cuda:0")})
made = []
assign, copy = copies.assign, copies.copy
copies.assign = lambda target, values, *more: (made.append(target.nbytes), assign(target, values, *more))[1]
copies.copy = lambda pairs: (made.extend(target.nbytes for target, _ in pairs), copy(pairs))[1]
there = cw.put("m1", t, device="cuda:1")
copies.assign, copies.copy = assign, copy
assert len(made) == 1, made
assert there.device == "cuda:1" and list(there) == list(t)
assert all((there[p].to("cpu").numpy() == t[p].to("cpu").numpy()).all() for p in t)
back = cw.put("m0", there, device="cpu")
assert back.device == "cpu" and (back["c"].numpy() == 4).all() and back.verify() == 3
some = cw.put("some", {"x": t["b.bias"], "y": t["a.weight"]}, device="cuda:1")      # another order: each by itself
assert (some["y"].to("cpu").numpy() == 3).all() and some["x"].shape == (7,)
"""
    )
