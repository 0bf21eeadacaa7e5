"""Loading onto a GPU: through pinned memory, or without it; the same hashes as in host memory; one tree for all processes.

Runs in `make test-more`.
"""

from __future__ import annotations

import cuda_programs
import cuda_support
import pytest

cuda_support.require()

gpus = cuda_support.for_module()
program = cuda_programs.program

FILE = """
import json, struct
def written(path, mebibytes=40):
    "Tensors of all sizes, the largest of several pieces."
    sizes = [0, 1, 7, 4096, 1 << 20, mebibytes << 20, 5]
    ends = np.cumsum([0, *sizes]).tolist()
    header = {f"t{n}": {"dtype": "U8", "shape": [sizes[n]], "data_offsets": ends[n:n + 2]} for n in range(len(sizes))}
    text = json.dumps(header).encode()
    values = np.random.default_rng(1).integers(0, 255, ends[-1], "u1")
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + values.tobytes())
    return {f"t{n}": values[ends[n]:ends[n + 1]] for n in range(len(sizes))}
def check(tree, wanted):
    for name, values in wanted.items():
        assert (tree[name].to("cpu").numpy() == values).all(), name
"""


def test_a_tree_on_a_gpu_is_what_lies_in_the_file(program):
    program(
        FILE
        + """
wanted = written("m.safetensors")
t = cw.load("m", "m.safetensors", device="cuda:0", keep=True)
assert t.device == "cuda:0"
check(t, wanted)
host = cw.load("host", "m.safetensors")
assert host.device == "cpu" and t.content_hash == host.content_hash != 0
assert t.verify() == host.verify()
assert t["t5"].readonly
child = other('''
t = cw.load("m", "m.safetensors", device="cuda:0")
assert t.version == cw.get("m").version and t.device == "cuda:0"
assert cw.load("m", "m.safetensors").version == t.version        # wherever it is
say()
''')
heard(child)
ended(child)
try:
    cw.load("m", "m.safetensors", device="cpu")
    raise SystemExit("it lies on a GPU")
except cw.NameTaken as error:
    assert "not on cpu" in str(error)
"""
    )


@pytest.mark.skipif(cuda_support.REAL, reason="the driver's failures are the double's")
def test_where_memory_cannot_be_pinned_it_goes_without(program):
    program(
        FILE
        + """
wanted = written("m.safetensors")
cw.empty(1, device="cuda:0").close()
assert cuda.fakecuda_faults(b"cuMemHostRegister@1+=OUT_OF_MEMORY") == 0
check(cw.load("m", "m.safetensors", device="cuda:0"), wanted)
"""
    )


@pytest.mark.skipif(cuda_support.REAL, reason="the driver's failures are the double's")
def test_a_copy_that_fails_leaves_nothing(program):
    program(
        FILE
        + """
wanted = written("m.safetensors")
cw.empty(1, device="cuda:0").close()
assert cuda.fakecuda_faults(b"copy@2=ILLEGAL_ADDRESS") == 0
try:
    cw.load("m", "m.safetensors", device="cuda:0")
    raise SystemExit("a copy failed")
except cw.DeviceError:
    pass
assert cw.names() == []
child = other('''
cw.load("m", "m.safetensors", device="cuda:0")
say()
''')
heard(child)
ended(child)
"""
    )


@pytest.mark.skipif(cuda_support.REAL, reason="the double kills in the midst of a copy")
@pytest.mark.parametrize("moment", ["copy@1", "copy@4", "cuMemHostRegister@1", "record@2"])
def test_a_loader_that_dies_in_the_midst_is_replaced(program, moment):
    program(
        FILE
        + """
wanted = written("m.safetensors")
child = other('''
cw.empty(1, device="cuda:0").close()
assert cuda.fakecuda_faults(b"MOMENT=kill") == 0
cw.load("m", "m.safetensors", device="cuda:0")
''')
died = child.wait()
assert died == -signal.SIGKILL, died
assert cw.names() == [], cw.names()
heir = other('''
t = cw.load("m", "m.safetensors", device="cuda:0")
assert t.verify() == 7
say()
''')
heard(heir)
check(cw.load("m", "m.safetensors", device="cuda:0"), wanted)
ended(heir)
""".replace("MOMENT", moment)
    )


SEVERAL = (
    FILE
    + """
devices = ["cuda:1", "cuda:0"]
wanted = written("m.safetensors")
trees = cw.load("m", "m.safetensors", device=devices, meta={"k": 1})
assert [t.device for t in trees] == devices and cw.names() == ["m/cuda:0", "m/cuda:1"]
for t in trees:
    check(t, wanted)
    assert t.verify() == 7 and t.meta["k"] == 1 and t.content_hash == trees[0].content_hash
"""
)


@cuda_support.second_gpu
@pytest.mark.parametrize("peers", [True, False])
def test_a_tree_on_each_of_two_gpus_and_one_read(program, peers):
    if cuda_support.REAL and not peers:
        pytest.skip("who reaches whom is the double's to say")
    program(
        ("" if peers else 'os.environ["CABLEWAY_FAKECUDA_NO_PEER"] = "all"\n')
        + """
def read_bytes():
    return int(open("/proc/self/io").read().split("rchar: ")[1].split()[0])
cw.connect()
for gpu in ("cuda:0", "cuda:1"):
    cw.empty(1, device=gpu).close()
before = read_bytes()
"""
        + SEVERAL
        + """
child = other('''
def read_bytes():
    return int(open("/proc/self/io").read().split("rchar: ")[1].split()[0])
for gpu in ("cuda:0", "cuda:1"):
    cw.empty(1, device=gpu).close()
before = read_bytes()
alone = cw.load("alone", "m.safetensors", device=[0, 1])
assert read_bytes() - before < 1.5 * 41 * (1 << 20)      # once, not once for each
both = cw.load("m", "m.safetensors", device=[0, 1])
assert [t.version for t in both] == [cw.get(f"m/cuda:{n}").version for n in (0, 1)]
one = cw.load("m/cuda:1", "m.safetensors", device=1)
assert one.version == both[1].version
say()
''')
heard(child)
ended(child)
cw.remove("m/cuda:0")
again = cw.load("m", "m.safetensors", device=[0, 1])      # what is missing is loaded
assert again[1].version == trees[0].version and again[0].version > trees[1].version
check(again[0], wanted)
"""
    )


@cuda_support.second_gpu
def test_loaders_of_lists_in_different_orders_do_not_wait_in_a_ring(program):
    program(
        FILE
        + """
wanted = written("m.safetensors")
text = '''
both = cw.load("m", "m.safetensors", device=ORDER)
assert sorted(t.device for t in both) == ["cuda:0", "cuda:1"]
say()
sys.stdin.readline()
'''
children = [other(text.replace("ORDER", order)) for order in ("[0, 1]", "[1, 0]", "[0, 1]", "[1, 0]")]
for child in children:
    heard(child)
for number in (0, 1):
    check(cw.get(f"m/cuda:{number}"), wanted)
for child in children:
    child.stdin.close()
    ended(child)
"""
    )


def test_a_list_of_gpus_that_is_wrong_is_told_which_and_by_how_much(program):
    program(
        FILE
        + """
def refused(name, devices):
    try:
        cw.load(name, "m.safetensors", device=devices)
    except ValueError as error:
        return str(error)
    raise SystemExit(f"{name}, {devices} were taken")
written("m.safetensors", mebibytes=1)
assert 'has "cuda:0" twice: give GPUs' in refused("m", [0, 0])
assert 'has "cpu": give GPUs' in refused("m", ["cuda:0", "cpu"])
said = refused("n" * 194, ["cuda:0"])
assert "201 bytes" in said and "200 are possible" in said, said
cw.load("n" * 193, "m.safetensors", device=["cuda:0"])
assert cw.names() == ["n" * 193 + "/cuda:0"]
"""
    )


@pytest.mark.skipif(cuda_support.REAL, reason="the double kills in the midst of a copy")
@pytest.mark.parametrize("moment", ["copy@1", "copy@5", "cuMemHostRegister@1", "record@2"])
def test_a_loader_for_two_gpus_that_dies_leaves_nothing_and_the_next_one_loads(program, moment):
    program(
        FILE
        + """
wanted = written("m.safetensors")
child = other('''
cw.empty(1, device="cuda:0").close()
assert cuda.fakecuda_faults(b"MOMENT=kill") == 0
cw.load("m", "m.safetensors", device=[0, 1])
''')
died = child.wait()
assert died == -signal.SIGKILL, died
assert cw.names() == [], cw.names()
for t in cw.load("m", "m.safetensors", device=[0, 1]):
    check(t, wanted)
""".replace("MOMENT", moment)
    )


def test_the_ring_is_kept_for_the_next_read_and_not_for_a_child(program):
    program(
        FILE
        + """
wanted = written("m.safetensors")
for number in range(3):
    check(cw.load(f"m{number}", "m.safetensors", device="cuda:0"), wanted)
child = os.fork()
if not child:
    try:
        cw.load("child", "m.safetensors", device="cuda:0")
    except cw.DeviceError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
check(cw.load("after", "m.safetensors", device="cuda:0"), wanted)
"""
    )
