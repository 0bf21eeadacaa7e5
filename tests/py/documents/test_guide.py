"""Every code block of README.md and docs/guide is a program that runs as it stands, and prints what the page says.

Python blocks are saved and run, as a reader would; shell blocks likewise, by `bash -e`. Blocks that ask for a GPU run on the
test double of the driver (on real GPUs with CABLEWAY_TEST_GPU=1). What runs elsewhere or nowhere is named here.
"""

from __future__ import annotations

import doctest
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cuda_support
import guide_blocks
import pytest
from conftest import stop_broker
from guide_blocks import Block

import cableway as cw

pytestmark = pytest.mark.skipif(not guide_blocks.PAGES[0].exists(), reason="no README here")

# Blocks that need a GPU library, which computes nothing on the test double: they are compiled here, and run where real GPUs
# and the library are.
COMPILED_ONLY = {
    'docs/guide/coming-from.md: w = cw.put("weights", torch.zeros(3))',
    'docs/guide/gpus.md: x = cw.put("x", cupy.arange(1_000_000, dtype="f8"))',
    'docs/guide/queues.md: w = cw.zeros(1_000_000, "f4", device="cuda:0")',
    'docs/guide/gpus.md: y = cw.put("y", cupy.ones(1_000_000))',
    "docs/guide/gpus.md: def norm(x):",
    "docs/guide/groups.md: with cw.Group() as g:",
    'docs/guide/models.md: cw.put("net", torch.nn.Linear(4, 2))',
}
# Blocks that this test does not run, and what does.
RUN_ELSEWHERE = {
    "README.md: git clone THE-REPOSITORY cableway && cd cableway": "tests/fresh",
    "docs/guide/installing.md: make wheel": "tests/fresh",
    "docs/guide/installing.md: make deb": "tests/fresh",
    "docs/guide/installing.md: cc prog.c $(pkg-config --cflags --libs cableway)": "it needs `make install`, after which tests/fresh links a program",
    "docs/guide/several-machines.md: cableway keygen --node a": "test_bridge_readme.py",
    "docs/guide/several-machines.md: cableway peers add b 10.213.7.2:7400 --key sha256:BBBB... --read 'shared/*' --write 'inbox/*'": "test_bridge_readme.py",
    'docs/guide/several-machines.md: cw.put("shared/weights", np.random.rand(1000, 1000), keep=True)': "test_bridge_readme.py",
    'docs/guide/several-machines.md: on() { node=/tmp/two-$1; shift; CABLEWAY_DIR=$node CABLEWAY_NODE_DIR=$node/key "$@"; }': "test_bridge_one_machine.py",
    "docs/guide/several-machines.md: cableway keygen --node alice": "test_bridge_two_users.py",
    "docs/guide/dask.md: pip install 'cableway[dask]'": "`make build/dask/made.stamp` installs it so, and the wheel of this build",
    "docs/guide/dask.md: dask scheduler --preload cableway.dask": "clusters/test_dask_limits.py starts such a worker",
    "docs/guide/ray.md: pip install 'cableway[ray]'": "`make build/ray/made.stamp` installs it so, and the wheel of this build",
    "docs/guide/ray.md: @ray.remote": "clusters/test_ray.py, since Ray takes seconds to start",
    "docs/guide/slurm.md: srun python train.py": "it needs SLURM; test_bridge_slurm.py has a stand-in for srun",
    "docs/guide/slurm.md: set -eu": "test_bridge_slurm.py, as docs/examples/bridge/two_nodes.sbatch",
}
DASK = (
    Path(os.environ.get("CABLEWAY_BUILD", guide_blocks.ROOT / "build")).resolve()
    / "dask/bin/python"
)
LIBRARIES = ("joblib", "sklearn", "numba")
SECONDS = 100


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a program prints that must succeed. It has a broker of its own."""
    programs = Path(cw.__file__).parent / "bin"
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    broker = Path(tempfile.mkdtemp(prefix="cwguide-"))
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PATH": path, "CABLEWAY_DIR": str(broker), **environment},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    finally:
        stop_broker(broker)
        shutil.rmtree(broker)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compare(block: Block, printed: str) -> None:
    """What the page shows as the output is what was printed; ... stands for what differs from run to run."""
    if block.output is None:
        return
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(block.output, printed, flags), printed


def of(kind: str) -> pytest.MarkDecorator:
    """A test for each block of one kind."""
    found = guide_blocks.blocks(kind)
    return pytest.mark.parametrize("block", found, ids=[f"{b.page}:{b.line}" for b in found])


@of("python")
def test_a_python_block_runs(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(block.code)
    compile(block.code, block.page, "exec")
    if block.name in RUN_ELSEWHERE:
        return
    environment = {}
    if block.library:
        assert block.name in COMPILED_ONLY, "a new block: name it in COMPILED_ONLY"
        if not cuda_support.REAL:
            return
        pytest.importorskip(block.library)
    if block.needs_gpu and not cuda_support.REAL:
        if not cuda_support.DOUBLE.exists():
            pytest.skip("neither a GPU nor the test double of its driver")
        environment = cuda_support.double(tmp_path / "card")
    for library in LIBRARIES:
        if re.search(rf"^ *(import|from) .*\b{library}\b", block.code, re.MULTILINE):
            pytest.importorskip(library)
    interpreter = sys.executable
    if "import cableway.dask" in block.code:
        if not DASK.exists():
            pytest.skip("`make build/dask/made.stamp` was not called")
        interpreter = str(DASK)
    compare(block, run([interpreter, str(file)], tmp_path, environment))


@of("sh")
def test_a_shell_block_runs(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "commands.sh"
    file.write_text(block.code)
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    if block.name in RUN_ELSEWHERE:
        return
    compare(block, run(["bash", "-euo", "pipefail", str(file)], tmp_path, {}))


def test_the_lists_name_blocks_that_are_there() -> None:
    """A list that nobody reads grows: each name in it is that of a block."""
    every = {block.name for kind in ("sh", "python") for block in guide_blocks.blocks(kind)}
    python = {block.name for block in guide_blocks.blocks("python") if block.library}
    assert set(RUN_ELSEWHERE) <= every, set(RUN_ELSEWHERE) - every
    assert python == COMPILED_ONLY, python ^ COMPILED_ONLY


def test_each_block_says_what_it_is() -> None:
    """A block of another kind would be run by nobody."""
    for page in guide_blocks.PAGES:
        for block in guide_blocks.blocks_of(page):
            assert block.kind in ("python", "sh"), (
                f"{block.page}:{block.line}: of kind {block.kind!r}"
            )


def test_pictures_are_those_that_the_scripts_draw() -> None:
    folder = guide_blocks.ROOT / "docs/pictures"
    overview, sequences, models, top = (runpy.run_path(str(folder / f"{name}.py")) for name in ("overview", "sequences", "models", "top"))  # fmt: skip
    drawn = {"overview": overview["draw"](), "models": models["draw"]()}
    drawn.update({name: sequences["draw"](name) for name in sequences["PICTURES"]})
    drawn.update({name: top["draw"](name) for name in top["SCREENS"]})
    assert {file.stem: file.read_text() for file in folder.glob("*.svg")} == drawn, (
        "run the scripts"
    )
    shown = "".join((guide_blocks.ROOT / page).read_text() for page in ("README.md", "docs/ARCHITECTURE.md", "docs/guide/models.md", "docs/guide/thousand-nodes.md", "docs/guide/watching.md"))  # fmt: skip
    assert [name for name in drawn if f"pictures/{name}.svg)" not in shown] == []


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(
        page.read_text() for page in (guide_blocks.ROOT / "docs/reference").glob("*.md")
    )
    missing = [
        name for name in cw.__all__
        if f":: cableway.{name}\n" not in pages and getattr(cw, name).__module__ != "cableway.errors"
    ]  # fmt: skip
    assert not missing


def test_links_lead_to_files() -> None:
    for page in guide_blocks.PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
