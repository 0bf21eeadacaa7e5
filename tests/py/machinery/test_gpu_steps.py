"""What tests/gpu tells of a run on real GPUs: its table, and whether compute-sanitizer sees what it is to look at."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import cuda_support
import pytest

HERE = Path(__file__).resolve().parents[2] / "gpu"

# A tool that reports a bad kernel where $REPORTS has the program's last word, and writes its log as the real one does.
TOOL = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do [ "$1" = --log-file ] && log=$2; shift 2; done
for last; do :; done
echo "========= COMPUTE-SANITIZER" > "$log"
case " $REPORTS " in *" $last "*) echo "========= Invalid __global__ write of size 4 bytes" >> "$log" ;; esac
exec "$@"
"""


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("CABLEWAY_BUILD", str(cuda_support.BUILD))
    monkeypatch.setenv("CABLEWAY_TEST_GPU", "1")
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", HERE / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("steps", monkeypatch)


@pytest.fixture
def sanitize(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("sanitize", monkeypatch)


@pytest.mark.parametrize(
    "text",
    ["16 deselected in 0.04s\n", "SKIPPED [1] test_x.py:18: needs it\n1 skipped in 0.02s\n"],
)
def test_a_file_with_nothing_for_this_machine_is_ok_and_says_so(steps, text):
    good, said = steps.verdict(text, 5, "")
    assert good == "ok" and said.startswith("nothing for this machine: 1")
    assert ("(needs it)" in said) == ("SKIPPED" in text)


@pytest.mark.parametrize(
    ("text", "code", "cut"),
    [
        ("1 failed, 16 deselected in 1.0s", 1, ""),
        ("no tests ran in 0.01s", 5, ""),  # a file without tests is no file of ours
        ("", 5, ""),
        ("3 passed in 1.0s", 0, ", CUT at 9 s"),
        ("16 deselected in 0.04s", 5, ", CUT at 9 s"),
        ("3 passed in 1.0s", -11, ""),
    ],
)
def test_what_failed_or_was_cut_is_not_ok(steps, text, code, cut):
    good, said = steps.verdict(text, code, cut)
    assert good == "NOT OK" and said


def test_missed_promises_are_named(steps, monkeypatch):
    gpu = """
promise                                                          target         found
fences by bare flags                                        at most 1.2 x       0.992 x  met
host to GPU, 64 MiB by the pinned copy                    at least 0.97 x       0.933 x  MISSED
# all: 29.6 s; promises missed
"""
    pool = """what                          target                   met  found
map over 64 MiB arrays        >= 10 times less         yes  5.0 us a task
map over 64 MiB tensors       >= 10 times less         NO   67.9 us a task: 3.4 times
41 s on 1 GPUs
"""
    good, said = steps.verdict(gpu, 0, "")
    assert good == "MISSED" and said.endswith(
        "missed: host to GPU, 64 MiB by the pinned copy 0.933 x (at least 0.97 x)"
    )
    good, said = steps.verdict(pool, 0, "")
    assert good == "MISSED" and said.startswith("41 s on 1 GPUs: map over 64 MiB tensors 67.9 us")
    assert steps.verdict(gpu.replace("MISSED", "met"), 0, "")[0] == "ok"
    assert steps.verdict(pool, 1, "")[0] == "NOT OK"
    monkeypatch.setattr(steps, "REAL", False)  # figures of the double
    assert steps.verdict(pool, 0, "")[0] == "ok"


def test_deaths_are_told_with_their_number_and_seed(steps):
    text = "# CABLEWAY_TEST_SEED=7 repeats this run\nfence_deaths: 9 producers killed, seed 7, 8 at once\n"
    assert steps.verdict(text, 0, "") == ("ok", "fence_deaths: 9 producers killed, seed 7, 8 at once")  # fmt: skip


# Ends when it has been looked at.
SEEN = "import os, sys, time\nwhile not os.path.exists(f'{sys.argv[1]}/{os.getpid()}'): time.sleep(0.01)"


@pytest.fixture
def checked(sanitize, monkeypatch, tmp_path, capsys):
    """What the check finds wrong, and what it says, with a tool that reports only some of the programs."""
    tool = tmp_path / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o700)

    def program(name: str, forks: bool = False) -> object:
        return sanitize.Program(name, [sys.executable, "-c", SEEN, str(tmp_path), name], 60, forks)

    def note(watch: object, pid: int, uses: bool, inside: bool) -> None:
        noted(watch, pid, uses, inside)
        (tmp_path / str(pid)).touch()

    noted = sanitize.Watch.note
    monkeypatch.setattr(sanitize.Watch, "note", note)
    monkeypatch.setattr(
        sanitize, "controls", lambda _: [program("exec'd"), program("forked", True)]
    )
    monkeypatch.setattr(sanitize, "programs", lambda _: [program("one"), program("two", True)])
    # No CUDA here: what runs under the tool counts as a process with it.
    monkeypatch.setattr(sanitize, "looked", lambda maps, files: (True, True))

    def check(reports: str) -> tuple[list[str], str]:
        monkeypatch.setenv("REPORTS", reports)
        return sanitize.check(str(tool), cuda_support.BUILD, tmp_path), capsys.readouterr().out

    return check


def test_a_tool_that_sees_nothing_fails_the_check(checked):
    wrong, said = checked("")
    assert wrong == ["it sees nothing: a bad kernel was not reported"]
    assert "was NOT reported" in said


def test_what_a_tool_cannot_see_is_left_out_and_named(checked):
    wrong, said = checked("exec'd")
    assert not wrong
    assert "compute-sanitizer: 1 programs, 1 processes with CUDA looked at, no errors" in said
    assert said.endswith("forked children are out of its sight, left out: two\n")


def test_what_a_tool_reports_fails_the_check(checked):
    wrong, said = checked("exec'd forked")
    assert not wrong and "2 programs, 2 processes with CUDA looked at, no errors\n" in said
    wrong, said = checked("exec'd forked two")
    assert wrong == ["errors in two"] and "Invalid __global__ write" in said


def test_a_program_without_cuda_in_its_processes_fails_the_check(checked, sanitize, monkeypatch):
    monkeypatch.setattr(sanitize, "looked", lambda maps, files: (True, "seen" in maps))
    wrong, said = checked("exec'd forked")
    assert not wrong and "processes with CUDA cannot be told here" in said  # not of the controls
    asked = iter(range(1 << 20))  # of the first only: that is a control
    monkeypatch.setattr(sanitize, "looked", lambda maps, files: (True, next(asked) == 0))
    wrong, _ = checked("exec'd forked")
    assert wrong == [f"{name}: no process with CUDA was seen" for name in ("one", "two")]


def test_a_process_that_uses_cuda_out_of_the_tools_sight_is_found(sanitize, monkeypatch):
    maps = "7f00 r-xp /usr/lib/libcuda.so.1\n"
    inside = maps + "7f01 r-xp /usr/local/cuda/compute-sanitizer/libsanitizer-collection.so\n"
    assert sanitize.looked(maps, ["/dev/nvidia0"]) == (True, False)
    assert sanitize.looked(inside, ["/dev/nvidia0"]) == (True, True)
    assert sanitize.looked(maps, ["/dev/null"]) == (False, False)  # loaded, and not begun
    assert sanitize.looked("", ["/dev/nvidiactl"]) == (False, False)  # nvidia-smi
    watch = sanitize.Watch("x")
    for pid in (1, 2, 3):
        watch.note(pid, True, False)
    watch.note(1, True, True)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + sanitize.GRACE_S + 1)
    watch.note(2, True, False)
    watch.note(3, False, False)
    assert watch.seen == {1} and watch.unseen == {2}


def test_a_page_of_benchmarks_keeps_its_words_and_has_every_row(tmp_path):
    page = HERE.parents[1] / "tools/bench/page.py"
    log = tmp_path / "logs.txt"
    log.write_text("""
######## cuda                        17 s  ok      11 passed, 3 skipped in 14.78s (no second GPU)
######## bench-gpu                   30 s  MISSED  # all: 29.6 s
what                                                             cableway  peer                         figure  unit  ours/peer
begin and end, on the CPU                                             1.8                                       us
host to GPU, 1 MiB                                                   33.6  driver, pinned                 33.9  GB/s   0.989     30.1 to 34.0 | 30.2 to 34.4, 200 each
IPC events                                                           12.0  IPC events, a new one each time      275.8  us     0.044

promise                                                                             target         found
fences by bare flags                                                         at most 1.2 x       0.992 x  met
IPC events, by fences                                                       at least 20 x        1.63 x  MISSED
NCCL by ours: GPU to GPU, 64 MiB                                         at least 1.05 x  not measured
# all: 29.6 s; promises missed

######## deaths                     177 s  NOT OK  fence_deaths: 9 producers killed, exit 1
fence_deaths: 9 producers killed, seed 7
""")
    to = tmp_path / "page.md"
    to.write_text("# Words\n\n<!-- below this line: tools/bench/page.py -->\nold\n")
    for _ in range(2):
        subprocess.run([sys.executable, page, "gpu", log, log, "--four", log, "--into", to], check=True)  # fmt: skip
    text = to.read_text()
    assert text.startswith("# Words\n") and "old" not in text and text.count("## One GPU") == 1
    assert text.count("## Four GPUs") == 1
    assert "| begin and end, on the CPU | 1.8 |  |  | us |  |  |" in text
    assert "| host to GPU, 1 MiB | 33.6 | driver, pinned | 33.9 | GB/s | 0.989 | 30.1 to 34.0; 30.2 to 34.4, 200 each |" in text  # fmt: skip
    assert "| IPC events | 12.0 | IPC events, a new one each time | 275.8 | us | 0.044 |  |" in text
    assert "| IPC events, by fences | at least 20 x | 1.63 x | **missed**; between two" in text
    assert "NCCL" not in text and "Tests: 11 passed" in text
    assert "- deaths: fence_deaths: 9 producers killed, exit 1" in text and "seed 7" in text
