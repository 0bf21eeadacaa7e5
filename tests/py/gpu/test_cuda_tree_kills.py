"""Maker, loader and reader of trees on a GPU, killed at a step of their work (a call of the driver, or the beginning of a copy) or at
any moment (on real GPUs at any moment alone): a name means a whole version or nothing, and within a second no GPU memory is held for
the dead.

20 kills; 100 with CABLEWAY_SOAK set (make soak). The seed is printed.

Runs in `make test-more`.
"""

from __future__ import annotations

import os

import cuda_programs
import cuda_support
import pytest

cuda_support.require()

gpus = cuda_support.for_module()
program = cuda_programs.program

SOAK = bool(os.environ.get("CABLEWAY_SOAK"))
KILLS = 100 if SOAK else 20


@pytest.mark.timeout(900 if SOAK else 200)
def test_a_tree_is_whole_or_absent_and_memory_is_back_whoever_is_killed(program):
    program(
        f"COMMAND, KILLS, REAL = {str(cuda_support.COMMAND)!r}, {KILLS}, {cuda_support.REAL}"
        + """
import json, random
from safetensors.numpy import save_file
def gpu_bytes():
    told = json.loads(subprocess.run([COMMAND, "status", "--json"], capture_output=True, text=True, check=True).stdout)
    return told["gauges"]["gpu_bytes"]
save_file({str(i): np.full(50000, 7, "f4") for i in range(8)}, "m.safetensors")
BEGIN = f"REAL = {REAL}" + '''
def moment(text):
    if REAL:
        cw.zeros(1, device="cuda:0")          # the driver takes a second to begin
    say()                                     # it begins
    if text:
        cuda.fakecuda_faults(text.encode())
'''
PUT = '''
state = {str(i): np.full(50000, VALUE, "f4") for i in range(8)}
cw.put("m", state, device="cuda:0", meta=VALUE, keep=True, hashed=True)
'''
MAKER = BEGIN + '''
moment(MOMENT)
for VALUE in range(2, 10):
''' + PUT.replace("\\n", "\\n    ") + '''
'''
LOADER = BEGIN + '''
moment(MOMENT)
for name in range(6):
    cw.load(f"loaded{name}", "m.safetensors", device="cuda:0", keep=True)
'''
READER = BEGIN + '''
moment(MOMENT)
for _ in range(10):
    with cw.get("m") as t:
        assert t.verify() == 8
        copies = [x.copy() for x in t.values()]
'''
STEPS = ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemExportToShareableHandle",
         "cuMemImportFromShareableHandle", "cuMemRelease", "cuMemHostRegister", "copy", "record", "write"]
seed = random.randrange(1 << 30)
print("seed", seed, flush=True)
chance, killed = random.Random(seed), {"maker": 0, "loader": 0, "reader": 0}
number = 0
while sum(killed.values()) < KILLS:
    number += 1
    assert number < 6 * KILLS, killed              # most steps are reached
    role, text = [("maker", MAKER), ("loader", LOADER), ("reader", READER)][number % 3]
    first = other(PUT.replace("VALUE", "1"))       # the version before
    ended(first)
    at_step = not REAL and chance.random() < 0.7
    step = f"{chance.choice(STEPS)}@{chance.randrange(1, 6)}=kill" if at_step else ""
    child = other(text.replace("MOMENT", repr(step)))
    heard(child)
    if not at_step:
        time.sleep(chance.random() / 20)           # which moment, not whether the test is right
        child.kill()
    status = child.wait(60)
    assert status in (0, -signal.SIGKILL), (role, step, status)
    killed[role] += status != 0
    names = cw.names()
    assert "m" in names, (role, step)
    for name in names:
        with cw.get(name) as tree:
            wanted = 7 if name != "m" else float(tree.meta)
            assert tree.verify() == 8 and (wanted == 1 or role != "reader"), (role, step, name)
            assert {float(v) for x in tree.values() for v in np.unique(x.to("cpu").numpy())} == {wanted}
        cw.remove(name)
    begun = time.monotonic()
    while gpu_bytes() and time.monotonic() - begun < 1: time.sleep(0.01)
    assert gpu_bytes() == 0, (role, step, gpu_bytes())
print(killed, "of", number, flush=True)
""",
        timeout=800 if SOAK else 180,
    )
