"""Whatever is typed first after a clone, the set-up comes before anything is built; a user's own files are no breach.

The machine is a double: a set-up that only notes that it ran, a compiler and a Python that note each call and fail. The
real commands are typed in real roots by tests/fresh.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = {
    "": "build",
    "all": "build",
    "demo": "build",
    "install": "build",
    "wheel": "wheel",
    "lint": "lint",
    "test": "test",
    "test-more": "more",
    "test-c": "test",
    "soak": "test",
}
SET_UP = """#!/bin/sh
echo "set-up $1" >>"$NOTES"
touch "$NOTES.done"
"""
# It is asked for its machine, for headers and for archives whenever the Makefile is read: that builds nothing.
COMPILER = """#!/bin/sh
case "$*" in
*-dumpmachine*) echo x86_64-linux-gnu; exit ;;
*-print-file-name*) exit ;;
*-fsyntax-only*) test -e "$NOTES.done"; exit ;;
esac
echo "compiler" >>"$NOTES"
exit 1
"""
PYTHON = """#!/bin/sh
echo "python" >>"$NOTES"
exit 1
"""

pytestmark = pytest.mark.skipif(
    not (ROOT / "Makefile").exists() or not shutil.which("make"), reason="no checkout, or no make"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What lies in the checkout, without what was built, as a repository of its own."""
    folder = tmp_path / "clone"
    ignored = shutil.ignore_patterns("build", ".git", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
    return folder


def make(
    clone: Path, *words: str, set_up: str = SET_UP
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Types a make on the machine's double; what it said, and the notes of the double."""
    notes = clone.parent / "notes"
    doubles = {"compiler": COMPILER, "python": PYTHON}
    for name, text in doubles.items():
        (clone.parent / name).write_text(text)
        (clone.parent / name).chmod(0o755)
    (clone / "tools/setup.sh").write_text(set_up)
    ours = ("CABLEWAY_", "MAKE", "MFLAGS", "CUDA_INCLUDE", "CC", "BUILD", "VENV", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        ["make", "-k", f"CC={clone.parent}/compiler", f"PYTHON={clone.parent}/python", *words],
        cwd=clone, env={**environment, "NOTES": str(notes)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done, notes.read_text().splitlines() if notes.exists() else []


@pytest.mark.parametrize(
    ("command", "jobs"),
    [*((command, "-j8") for command in COMMANDS), ("", "-j1"), ("demo", "-j1"), ("test", "-j1")],
)
def test_the_set_up_comes_first_whatever_is_typed_first(
    clone: Path, command: str, jobs: str
) -> None:
    done, notes = make(clone, jobs, *command.split())
    assert notes[:1] == [f"set-up {COMMANDS[command]}"], done.stdout + done.stderr
    assert len(notes) > 1, "nothing was built"
    assert sum("set-up" in note for note in notes) == 1, notes


def test_the_bridge_is_asked_for_after_the_set_up(clone: Path) -> None:
    done, _ = make(clone, "all", "print-HAVE_BRIDGE")
    assert "yes" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize("bridge", ["yes", ""])
def test_without_the_bridges_libraries_its_tests_are_left_out(clone: Path, bridge: str) -> None:
    done, _ = make(clone, "-n", f"HAVE_BRIDGE={bridge}", "print-TEST_BUILT", "print-unit_HELP")
    built, helpers = done.stdout.splitlines()[:2]
    assert ("test_bridge_" in built) == bool(bridge)
    assert "test_client" in built
    assert "test_bridge_" not in helpers


@pytest.mark.parametrize("words", [["help"], ["clean"], ["-n", "demo"], ["print-VERSION"]])
def test_what_builds_nothing_sets_nothing_up(clone: Path, words: list[str]) -> None:
    done, notes = make(clone, *words)
    assert not notes
    assert done.returncode == 0, done.stderr


def test_a_set_up_that_fails_ends_the_command_before_anything_is_built(clone: Path) -> None:
    told = "cableway: please install"
    done, notes = make(clone, "-j8", "demo", set_up=f'echo "{told}" >&2; exit 1\n')
    assert done.returncode != 0
    assert not notes
    assert [line for line in done.stderr.splitlines() if "***" not in line] == [told]


@pytest.mark.parametrize("name", ["t.log", "venv/lib/thing.py", "notes.sh"])
def test_a_users_own_file_at_the_top_is_no_breach_of_the_rules(clone: Path, name: str) -> None:
    subprocess.run(["git", "init", "-q"], cwd=clone, check=True)
    subprocess.run(["git", "add", "-A"], cwd=clone, check=True)
    own = clone / name
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("TO" + "DO blanks \nno newline")
    command = [sys.executable, "tests/tidy.py"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (clone / "tests" / "new.sh").write_text("not ours\n")
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert "tests/new.sh" in done.stdout  # a new file in a folder of the project is looked at


def test_fresh_roots_that_cannot_be_made_are_a_failure_and_told() -> None:
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no python3 that every user can run")
    with tempfile.TemporaryDirectory(prefix="cwfresh-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(ROOT / "tests/fresh", folder / "tests/fresh")
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [python, "-B", str(folder / "tests/fresh/fresh.py")],
            cwd="/", capture_output=True, text=True, timeout=100, check=False, **nobody,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    told, counts = done.stdout.splitlines()
    assert "must be run as root" in told
    assert counts == "0 passed, 1 failed, 0 skipped"
