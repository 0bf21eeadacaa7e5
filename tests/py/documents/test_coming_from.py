"""docs/examples/coming-from: each example runs with the system that it is for, under each Python from 3.10 to 3.13.

Each checks its values, and that the sender sees what a receiver wrote. The systems lie in environments of their own, which
`make build/coming-from/made.stamp` fills (tools/coming_from.sh); a Python that is not here is skipped, and says so. Runs in
`make test-more`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs/examples/coming-from"
PLACES = Path(os.environ.get("CABLEWAY_BUILD", ROOT / "build")).resolve() / "coming-from"
VERSIONS = ["3.10", "3.11", "3.12", "3.13"]
RANKS = 4


@pytest.fixture(params=VERSIONS)
def place(request: pytest.FixtureRequest) -> Path:
    """The environment of one Python."""
    found = PLACES / request.param
    if not (PLACES / "made.stamp").exists():
        pytest.skip("`make build/coming-from/made.stamp` was not called")
    if not (found / "bin/python").exists():
        pytest.skip(f"no Python {request.param} on this machine")
    return found


def run(place: Path, words: list[str | Path], folder: Path, **environment: str) -> str:
    """What it prints."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{place}/bin:{os.environ['PATH']}",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CABLEWAY_PICKLE_SECONDS": "60",  # also where a machine is so busy that ranks are late
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("pyro.py", [], "[10.0, 20.0, 30.0] [8.0, 8.0, 8.0, 8.0]\n"),
        ("ipython_parallel.py", [], "[22.0, 4.0, 6.0, 8.0]\n"),
        ("pathos_pools.py", [], "[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]\n"),
        ("parallel_python.py", ["ppft"], "[1.0, 2.0, 3.0]\n"),
        ("parallel_python.py", ["pp"], "[1.0, 2.0, 3.0]\n"),
        ("celery_tasks.py", [], "[5.0, 20.0, 30.0]\n"),
        ("opencl.py", [], "Portable Computing Language [0.0, 50.0, 7.0, 7.0]\n"),
    ],
)
def test_it_shares_memory(
    place: Path, tmp_path: Path, name: str, arguments: list[str], said: str
) -> None:
    assert run(place, [place / "bin/python", EXAMPLES / name, *arguments], tmp_path).endswith(said)


def ranks(place: Path, mpi: str, folder: Path, *program: str | Path) -> str:
    """Runs a program of Python on RANKS ranks."""
    prefix = place / f"mpi-{mpi}"
    words = [
        prefix / "bin/mpiexec",
        *(["--oversubscribe"] if mpi == "openmpi" else []),
        *["-n", str(RANKS), place / "bin/python", *program],
    ]
    return run(
        place, words, folder,
        PATH=f"{prefix}/bin:{place}/bin:{os.environ['PATH']}", LD_LIBRARY_PATH=f"{prefix}/lib", OPAL_PREFIX=str(prefix),
        OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )  # fmt: skip


@pytest.mark.parametrize(("mpi", "library"), [("openmpi", "Open MPI"), ("mpich", "MPICH")])
def test_ranks_of_mpi_share_memory(place: Path, tmp_path: Path, mpi: str, library: str) -> None:
    which = "from mpi4py import MPI; print(MPI.Get_library_version(), flush=True)"
    assert ranks(place, mpi, tmp_path, "-c", which).count(library) >= RANKS
    said = ranks(place, mpi, tmp_path, EXAMPLES / "mpi.py")
    assert said.endswith("4 ranks: [100.0, 101.0, 102.0, 103.0], sum 10.0\n")


BCAST = """
import os, sys, time
from mpi4py import MPI
import cableway as cw

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
for i in range(20):
    made = cw.full(1000, float(i)) if rank == 0 else None
    if rank == comm.Get_size() - 1:
        time.sleep(0.05)  # the others have it, and have let go
    got = comm.bcast(made)
    del made
    assert got[...].sum() == 1000.0 * i, got[...].sum()
    del got
print("well", flush=True)
"""


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_one_pickle_is_opened_by_all_ranks_though_each_lets_go_at_once(
    place: Path, tmp_path: Path, mpi: str
) -> None:
    file = tmp_path / "bcast.py"
    file.write_text(BCAST)
    assert ranks(place, mpi, tmp_path, file).count("well") == RANKS
