"""The `cableway` command: every subcommand, its JSON, its exit codes, bad input, a broker that does not answer."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_support import (
    COMMAND,
    FAILED,
    LIMIT,
    NAME_TAKEN,
    NO_BROKER,
    NO_NAME,
    OK,
    TIMEOUT,
    USAGE,
    broker_pid,
    run,
    run_json,
    suspend,
)
from conftest import eventually, running_broker

import cableway as cw


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder without a broker; one that a test starts in it is ended. Only the command goes there."""
    folder = Path(tempfile.mkdtemp(prefix="cwcli-"))
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    yield folder
    pid = broker_pid(folder)
    if pid:
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: broker_pid(folder) == 0)
    shutil.rmtree(folder)


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    """A file with a small array."""
    np.save(tmp_path / "small.npy", np.arange(12, dtype="<f4").reshape(3, 4))
    return tmp_path / "small.npy"


# ---- usage


def test_help_tells_commands_and_exit_codes() -> None:
    text = run("--help").stdout
    for name in ["broker", "status", "ls", "stat", "put", "load", "verify", "get", "rm", "wait", "stop", "doctor"]:  # fmt: skip
        assert f"\n  {name} " in text
        if name != "broker":  # its arguments are the broker's own
            assert f"cableway {name}" in run(name, "--help").stdout
    for code in range(8):
        assert re.search(rf"\n  {code}  ", text)
    assert run("--version").stdout == f"cableway {cw.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("--nonsense",),
        ("ls", "--nonsense"),
        ("ls", "-x"),
        ("ls", "a", "b"),
        ("ls", "--json=3"),
        ("ls", "--all", "--namespace", "x"),
        ("stat",),
        ("put", "name"),
        ("get", "name"),
        ("rm",),
        ("wait",),
        ("wait", "name", "--timeout"),
        ("wait", "name", "--timeout", "soon"),
        ("wait", "name", "--timeout", "-1"),
        ("status", "extra"),
    ],
)
def test_wrong_usage_is_said_and_exits_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, expect=USAGE)
    assert done.stdout == ""
    assert done.stderr.startswith("cableway: ")
    assert done.stderr.count("\n") == 1


def test_messages_never_carry_control_characters() -> None:
    done = run("non\x1b[31msense\x07", expect=USAGE)
    assert "\\x1b" in done.stderr
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr


# ---- no broker


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("ls",),
        ("ls", "--all"),
        ("stat", "a"),
        ("get", "a", "a.npy"),
        ("rm", "a"),
        ("stop",),
    ],
)
def test_without_a_broker_it_says_so_and_starts_none(
    arguments: tuple[str, ...], elsewhere: Path
) -> None:
    done = run(*arguments, expect=NO_BROKER)
    assert "no broker runs" in done.stderr
    assert os.listdir(elsewhere) == []


def test_status_without_a_broker_is_json_too(elsewhere: Path) -> None:
    answer = run_json("status", expect=NO_BROKER)
    assert answer["broker"] is None
    assert answer["address"]["folder"] == str(elsewhere)


def test_a_stale_lock_file_is_no_broker(elsewhere: Path) -> None:
    (elsewhere / "cablewayd-v4.lock").write_text(f"{os.getpid()} 0 12345\n")
    run("status", expect=NO_BROKER)
    run("ls", expect=NO_BROKER)
    (elsewhere / "cablewayd-v4.lock").write_text("nonsense")
    run("status", expect=NO_BROKER)


def test_wait_without_a_broker_times_out(elsewhere: Path) -> None:
    begun = time.monotonic()
    done = run("wait", "a", "--timeout", "0.3", expect=TIMEOUT)
    assert time.monotonic() - begun >= 0.3
    assert "no broker runs" in done.stderr
    assert os.listdir(elsewhere) == []


def test_wait_sees_a_broker_and_a_name_that_come_later(elsewhere: Path, npy: Path) -> None:
    with subprocess.Popen([COMMAND, "wait", "late"], stderr=subprocess.DEVNULL) as waiting:
        time.sleep(0.2)
        run("put", "other", str(npy))
        time.sleep(0.2)
        assert waiting.poll() is None
        run("put", "late", str(npy))
        assert waiting.wait(60) == OK


# ---- put and get


def test_pipes_carry_files_both_ways(npy: Path) -> None:
    with open(npy, "rb") as file:
        run("put", "piped", "-", stdin=file)
    done = run("get", "piped", "-", text=False)
    assert done.stdout.startswith(b"\x93NUMPY")  # type: ignore[arg-type]
    cat = subprocess.run(
        f"cat '{npy}' | '{COMMAND}' put piped2 - && '{COMMAND}' get piped2 - | cat",
        shell=True,
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert cat.stdout.endswith(np.load(npy).tobytes())


def test_get_replaces_a_file_whole_or_not_at_all(npy: Path, tmp_path: Path) -> None:
    run("put", "a", str(npy))
    target = tmp_path / "target.npy"
    target.write_text("old")
    (tmp_path / "link.npy").symlink_to(target)
    run("get", "a", str(tmp_path / "link.npy"))
    assert (tmp_path / "link.npy").is_symlink()
    np.testing.assert_array_equal(np.load(target), np.load(npy))
    run("get", "a", str(tmp_path / "no" / "folder.npy"), expect=FAILED)
    done = run("get", "a", "/dev/full", expect=FAILED)
    assert "No space left" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["link.npy", "small.npy", "target.npy"]


def test_put_of_a_folder_or_of_nothing_fails(tmp_path: Path) -> None:
    assert "folder" in run("put", "a", str(tmp_path), expect=FAILED).stderr
    assert "No such file" in run("put", "a", str(tmp_path / "none"), expect=FAILED).stderr


def test_bad_names_are_refused_before_anything_is_done(elsewhere: Path, npy: Path) -> None:
    for name in ("", "/a", "a/", "a//b", "..", "a\nb", "x" * 201):
        run("put", name, str(npy), expect=FAILED)
    assert os.listdir(elsewhere) == []


def test_a_taken_name_is_replaced_or_refused(npy: Path) -> None:
    run("put", "a", str(npy))
    run("put", "a", str(npy))
    assert run("put", "a", str(npy), "--no-replace", expect=NAME_TAKEN).stderr


def test_a_limit_has_its_own_exit_code(elsewhere: Path, npy: Path) -> None:
    env = {"CABLEWAY_MAX_NAMES": "1"}
    run("put", "a", str(npy), env=env)
    assert run("put", "b", str(npy), expect=LIMIT).stderr


def test_put_says_how_long_a_lonely_name_lives(elsewhere: Path, npy: Path) -> None:
    assert "--keep" in run("put", "a", str(npy)).stderr
    assert run("put", "a", str(npy), "--keep").stderr == ""
    assert run_json("stat", "a")["keep"] is True


# ---- names


def test_ls_is_aligned_and_safe() -> None:
    names = ["plain", "wide/幅幅", "turned\u202egpj.exe", "sp ace"]
    for name in names:
        cw.put(name, np.zeros((3, 4)))
    lines = run("ls").stdout.splitlines()
    assert lines[0].split() == [
        "NAME",
        "DEVICE",
        "SHAPE",
        "DTYPE",
        "BYTES",
        "OWNER",
        "HOLDERS",
        "AGE",
    ]
    assert len(lines) == 1 + len(names)
    assert "\u202e" not in "".join(lines)
    assert any("\\xe2\\x80\\xae" in line for line in lines)
    plain = next(line for line in lines if line.startswith("plain"))
    assert plain.index("cpu") == lines[0].index("DEVICE")
    assert "(3, 4)" in plain and "<f8" in plain and "96 B" in plain and str(os.getpid()) in plain


def test_ls_json_tells_all() -> None:
    held = cw.put("held", np.zeros((2, 5), "<i2"))
    rows = run_json("ls")
    assert [row["name"] for row in rows] == ["held"]
    row = rows[0]
    assert row["shape"] == [2, 5] and row["dtype"] == "<i2" and row["bytes"] == held.nbytes
    assert row["device"] == "cpu" and row["namespace"] == "" and row["keep"] is False
    assert row["owner_pid"] == os.getpid() and row["holders"] == 1
    assert 0 <= row["age_seconds"] < 300
    assert [again["name"] for again in run_json("ls", "he")] == ["held"]
    assert run_json("ls", "nothing") == []


def test_namespaces_are_apart(npy: Path) -> None:
    run("put", "a", str(npy))
    run("put", "a", str(npy), "--namespace", "one")
    run("put", "b", str(npy), env={"CABLEWAY_NAMESPACE": "two"})
    try:
        assert [row["name"] for row in run_json("ls")] == ["a"]
        assert [row["name"] for row in run_json("ls", "--namespace", "one")] == ["a"]
        rows = run_json("ls", "--all")
        assert [(r["namespace"], r["name"]) for r in rows] == [
            ("", "a"),
            ("one", "a"),
            ("two", "b"),
        ]
        assert run("ls", "--all").stdout.startswith("NAMESPACE")
        run("ls", "--namespace", "bad space", expect=FAILED)
    finally:
        run("rm", "a", "--namespace", "one")
        run("rm", "b", "--namespace", "two")


def test_ls_into_a_reader_that_had_enough() -> None:
    array = cw.zeros(3)
    for i in range(3000):
        cw.put(f"many/{i}", array)
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; '{COMMAND}' ls | head -1; '{COMMAND}' ls --json | head -1",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == OK, done
    assert done.stderr == ""
    with open("/dev/full", "w") as full:
        failed = run("ls", expect=FAILED, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert "writing the output failed" in failed.stderr


def test_stat_tells_all_about_one_name() -> None:
    cw.put("a/b", np.zeros((3, 4), "<c8"))
    text = run("stat", "a/b").stdout
    assert re.search(r"^shape +\(3, 4\)$", text, re.M)
    assert re.search(r"^dtype +<c8$", text, re.M)
    assert run_json("stat", "a/b")["bytes"] == 96
    assert "no/such" in run("stat", "no/such", expect=NO_NAME).stderr


def test_rm_removes_all_it_can() -> None:
    cw.put("a", np.zeros(3))
    cw.put("b", np.zeros(3))
    assert "'none'" in run("rm", "a", "none", "b", expect=NO_NAME).stderr.replace('"', "'")
    assert cw.names() == []


def test_get_of_no_name_exits_4(tmp_path: Path) -> None:
    cw.names()
    run("get", "none", str(tmp_path / "x.npy"), expect=NO_NAME)
    assert os.listdir(tmp_path) == []


def test_wait_returns_when_the_name_is_there() -> None:
    cw.names()
    timer = threading.Timer(0.3, lambda: cw.put("soon", np.zeros(3)))
    timer.start()
    run("wait", "soon", "--timeout", "25")
    timer.join()
    run("wait", "soon")
    run("wait", "never", "--timeout", "0.2", expect=TIMEOUT)


def test_wait_ends_when_the_broker_is_lost(elsewhere: Path, npy: Path) -> None:
    run("put", "a", str(npy), "--keep")
    with subprocess.Popen([COMMAND, "wait", "never"], stderr=subprocess.PIPE, text=True) as waiting:
        assert eventually(lambda: run_json("status")["gauges"]["waiting"] == 1)
        os.kill(running_broker(elsewhere), signal.SIGKILL)
        assert waiting.wait(60) == NO_BROKER


# ---- the broker


def test_status_tells_broker_clients_counters_and_limits() -> None:
    cw.put("a", np.zeros(1000))
    answer = run_json("status")
    assert answer["broker"]["state"] in ("idle", "running")
    assert answer["broker"]["uptime_seconds"] >= 0
    assert answer["gauges"]["names"] == 1
    assert answer["gauges"]["bytes"] > 0
    assert answer["limits"]["max_names"] == 1_000_000
    assert answer["counters"]["puts"] >= 1
    assert os.getpid() in [client["pid"] for client in answer["clients"]]
    text = run("status").stdout
    assert f"pid {answer['broker']['pid']}" in text
    assert re.search(r"max_names +1000000", text)


def test_status_of_a_stopped_broker_does_not_hang(elsewhere: Path, npy: Path) -> None:
    run("put", "a", str(npy), "--keep")
    pid = broker_pid(elsewhere)
    suspend(pid)
    try:
        answer = run_json("status")
        text = run("status").stdout
        assert answer["broker"]["state"] == "stopped"
        assert answer["gauges"]["names"] == 1
        assert answer["broker"]["heartbeat_age_seconds"] is not None
        assert "STOPPED" in text and "stood still" in text
        assert "--force" in run("stop", "--yes", expect=FAILED).stderr
        assert "missing  broker" in run("doctor", expect=FAILED).stdout
        assert "does not answer" in run("ls", expect=FAILED).stderr
        assert "does not answer" in run("put", "b", str(npy), expect=FAILED).stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    assert eventually(lambda: run_json("status")["broker"]["state"] in ("idle", "running"))


def test_stop_says_what_would_be_lost_and_wants_a_yes(elsewhere: Path, npy: Path) -> None:
    run("put", "a", str(npy), "--keep")
    pid = broker_pid(elsewhere)
    done = run("stop", expect=FAILED)
    assert "loses 1 array that stands under a name" in done.stderr and "--yes" in done.stderr
    assert broker_pid(elsewhere) == pid
    answer = run_json("stop", "--yes")
    assert answer["pid"] == pid and answer["names"] == 1 and answer["forced"] is False
    assert broker_pid(elsewhere) == 0
    run("stop", "--yes", expect=NO_BROKER)


def test_stop_says_when_nothing_is_lost_and_what_clients_would_see(
    elsewhere: Path, npy: Path
) -> None:
    run("put", "a", str(npy), "--keep")
    run("rm", "a")
    with subprocess.Popen([COMMAND, "wait", "b"], stderr=subprocess.PIPE) as client:
        try:  # `rm` may be seen to go later than `wait` to come
            assert eventually(lambda: [c["pid"] for c in run_json("status")["clients"]] == [client.pid])  # fmt: skip
            said = run("stop", expect=FAILED).stderr
        finally:
            client.kill()
    assert "loses no array" in said and "slab" not in said
    assert "1 program is connected" in said and f"pid {client.pid}" in said
    assert eventually(lambda: run_json("status")["gauges"]["clients"] == 0)
    said = run("stop").stderr
    assert "loses no array" in said and "BrokerLost" not in said


def test_stop_asks_on_a_terminal(elsewhere: Path, npy: Path) -> None:
    run("put", "a", str(npy), "--keep")
    for answer, expected in ((b"n\n", FAILED), (b"y\n", OK)):
        ours, theirs = os.openpty()
        with subprocess.Popen(
            [COMMAND, "stop"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as stop:
            os.write(ours, answer)
            assert stop.wait(20) == expected
        os.close(ours)
        os.close(theirs)
    assert broker_pid(elsewhere) == 0


def test_stop_by_force_ends_a_stopped_broker(elsewhere: Path, npy: Path) -> None:
    run("put", "a", str(npy), "--keep")
    pid = broker_pid(elsewhere)
    suspend(pid)
    assert run_json("stop", "--yes", "--force")["forced"] is True
    run("status", expect=NO_BROKER)
    run("put", "a", str(npy))  # what it left behind is taken over


def test_broker_runs_the_broker_with_its_arguments(elsewhere: Path) -> None:
    with subprocess.Popen(
        [COMMAND, "broker", "--foreground"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as broker:
        assert eventually(lambda: broker_pid(elsewhere) == broker.pid)
        second = subprocess.run(
            [COMMAND, "broker", "--foreground"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert second.returncode != OK
        assert str(broker.pid) in second.stderr
        run("stop", "--yes")
        assert broker.wait(10) == OK
    done = run("broker", expect=FAILED, env={"CABLEWAY_BROKER": "/nonexistent"})
    assert "CABLEWAY_BROKER" in done.stderr


# ---- doctor


def test_doctor_finds_this_machine_fit(elsewhere: Path) -> None:
    answer = run_json("doctor")
    checks = {check["check"]: check for check in answer["checks"]}
    assert answer["works"] is True
    for name in ("kernel", "memfd and seals", "pidfd", "memory cgroup", "open files", "socket folder",
                 "broker", "huge pages", "CUDA driver", "/proc/PID/fd", "put and get", "bridge"):  # fmt: skip
        assert checks[name]["found"]
        assert checks[name]["level"] in ("ok", "info", "warning")
    assert "works here" in run("doctor").stdout
    # What it tried is gone again, but for the broker that any first client starts.
    assert run_json("ls", "--all") == [] and "later" not in run("doctor").stdout


def test_doctor_names_the_remedy(elsewhere: Path) -> None:
    elsewhere.chmod(0o755)
    answer = run_json("doctor", expect=FAILED)
    checks = {check["check"]: check for check in answer["checks"]}
    assert checks["socket folder"]["level"] == "missing"
    assert "CABLEWAY_DIR" in checks["socket folder"]["remedy"]
    assert "755" in checks["socket folder"]["found"]
    elsewhere.chmod(0o700)
    assert run_json("doctor", env={"SLURM_JOB_ID": "77"})["works"] is True
    assert "77" in run("doctor", env={"SLURM_JOB_ID": "77"}).stdout


def test_doctor_names_limits_that_stand_in_the_way(elsewhere: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 1000; ulimit -n 300; '{COMMAND}' doctor --json"],
        capture_output=True,
        check=True,
        timeout=30,
    )
    levels = {check["check"]: check["level"] for check in json.loads(done.stdout)["checks"]}
    assert levels["file size"] == levels["open files"] == "warning"


def test_a_broker_of_another_batch_job_is_told_apart(elsewhere: Path, npy: Path) -> None:
    run("put", "a", str(npy), "--keep")
    job = {"SLURM_JOB_ID": "77"}
    run("status", expect=NO_BROKER, env=job)
    assert f"pid {broker_pid(elsewhere)}" in run("doctor", env=job).stdout
