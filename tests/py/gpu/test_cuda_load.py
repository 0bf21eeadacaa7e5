"""Loading onto a GPU: through pinned memory, or without it; the same hashes as in host memory; one tree for all processes."""

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
assert t.verify() == 6
say()
''')
heard(heir)
check(cw.load("m", "m.safetensors", device="cuda:0"), wanted)
ended(heir)
""".replace("MOMENT", moment)
    )
