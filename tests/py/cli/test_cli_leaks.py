"""`cableway leaks`: each kind of memory that stays is found, with its figures, and what is in use is not. Runs in `make test-more`."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, FAILED, NO_BROKER, USAGE, run, run_json, suspend
from conftest import eventually, running_broker

import cableway as cw

PARTS = ("unheld", "transits", "caches", "old_versions", "orphans")


def leaks(older: float = 0, **options: Any) -> dict[str, Any]:
    """All that is older than so many seconds."""
    found = run_json("leaks", "--older", str(older), **options)
    assert set(found) == {*PARTS, "advice", "older_seconds", "transits_under_way"}
    assert found["older_seconds"] == older
    return found  # type: ignore[no-any-return]


def unheld(found: dict[str, Any], prefix: str) -> list[str]:
    return sorted(row["name"] for row in found["unheld"] if row["name"].startswith(prefix))


@contextlib.contextmanager
def child(text: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has run these lines, and goes on when its stdin ends."""
    text = f"import cableway as cw, numpy as np\n{text}\nprint('there', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_name_is_found_when_nobody_has_its_array_open() -> None:
    held = cw.put("held/a", np.ones(1000))
    cw.put("left/a", np.ones(1000), keep=True).close()
    with child("x = cw.get('left/a')"):
        assert unheld(leaks(), "left") == []
    assert eventually(lambda: unheld(leaks(), "left") == ["left/a"])
    found = leaks()
    assert unheld(found, "held") == []
    (row,) = [row for row in found["unheld"] if row["name"] == "left/a"]
    assert (row["bytes"], row["owner_pid"], row["keep"]) == (8000, os.getpid(), True)
    assert (row["device"], row["kind"], row["namespace"]) == ("cpu", "array", "")
    assert unheld(leaks(older=3600), "left") == []
    held.close()
    assert unheld(leaks(), "held") == ["held/a"]
    cw.remove("held/a")
    cw.remove("left/a")
    assert unheld(leaks(), "held") + unheld(leaks(), "left") == []


def test_a_handle_under_way_holds_its_array_and_is_found_itself() -> None:
    x = cw.put("sent", np.ones(5000))
    sent = pickle.dumps(x)
    x.close()
    found = leaks()
    assert unheld(found, "sent") == []
    (row,) = [row for row in found["transits"] if row["bytes"] >= 40000]
    assert (row["pid"], row["queued"], row["opened"], row["openers"]) == (os.getpid(), False, False, None)  # fmt: skip
    assert 0 < row["ends_in_seconds"] <= 300
    assert found["transits_under_way"] >= 1
    assert leaks(older=3600)["transits"] == []
    with child(f"import pickle; x = pickle.loads({sent!r})"):
        (row,) = [row for row in leaks()["transits"] if row["bytes"] >= 40000]
        assert row["opened"] is True
        assert row["ends_in_seconds"] <= 10
    cw.remove("sent")


def test_the_oldest_handles_come_first_and_the_rest_is_counted() -> None:
    queue = cw.Queue()
    x = cw.empty(10)
    for _ in range(150):
        queue.put(x)
    found = leaks()
    ages = [row["age_seconds"] for row in found["transits"]]
    assert ages == sorted(ages, reverse=True)
    assert len(ages) == 96
    assert all(row["queued"] for row in found["transits"] if row["openers"] == 1)
    # It stays as long as the queue does, whatever transit_seconds says.
    assert all((row["ends_in_seconds"] is None) == row["queued"] for row in found["transits"])
    assert "with the queue" in run("leaks", "--older", "0").stdout
    assert found["transits_under_way"] >= 150
    assert "of " in run("leaks", "--older", "0").stdout
    del queue
    assert eventually(lambda: leaks()["transits_under_way"] < 150)


def test_memory_that_an_idle_process_keeps_is_found() -> None:
    def kept(older: float = 0) -> dict[str, Any] | None:
        rows = [row for row in leaks(older)["caches"] if row["pid"] == process.pid]
        return rows[0] if rows else None

    with child("x = cw.put('of/child', np.ones(1 << 20)); y = cw.empty(4 << 20); y.close()") as process:  # fmt: skip
        assert eventually(lambda: (row := kept()) is not None and row["free_bytes"] >= 32 << 20)
        row = kept()
        assert row is not None
        assert row["live_bytes"] >= 8 << 20
        assert (row["device"], row["command"][:6]) == ("cpu", "python")
        assert kept(older=3600) is None
        rows = run_json("status")["clients"]
        (bytes_of_all,) = [client["bytes"] for client in rows if client["pid"] == process.pid]
        # The same as the broker counts; beside the data there are tables.
        assert row["free_bytes"] + row["live_bytes"] <= bytes_of_all
        assert row["free_bytes"] + row["live_bytes"] >= bytes_of_all * 0.8


def left_by_the_dead(text: str) -> None:
    """Runs these lines in a process, and ends it: what it made has no owner then."""
    with child(text) as process:
        pid = process.pid
        process.kill()
    assert eventually(lambda: all(row["pid"] != pid for row in run_json("status")["clients"]))


def orphans(name: str, **options: Any) -> list[dict[str, Any]]:
    """Memory of dead makers that a name keeps."""
    named = {"name": name, "namespace": ""}
    return [row for row in leaks(**options)["orphans"] if named in row["names"]]


def test_memory_of_a_process_that_ended_is_found_with_who_has_it() -> None:
    slabs = {row["slab"] for row in leaks()["orphans"]}
    left_by_the_dead("x = cw.put('of/dead', np.ones(1 << 20), keep=True); y = cw.put('of/other', [1], keep=True)")  # fmt: skip
    # Nobody has them open: they stand under their names, and not here as well.
    assert unheld(leaks(), "of/") == ["of/dead", "of/other"]
    for row in leaks()["orphans"]:
        if row["slab"] not in slabs:
            assert (row["arrays"], row["live_bytes"], row["holders"], row["pids"]) == (0, 0, 0, [])
            assert (row["names"], row["other_references"]) == ([], 0)
    held = cw.get("of/dead")
    with child("x = cw.get('of/dead')") as process:
        (row,) = orphans("of/dead")
        slab = row["slab"]
        assert slab not in slabs
        assert (row["device"], row["arrays"], row["holders"]) == ("cpu", 1, 2)
        assert sorted(row["pids"]) == sorted([os.getpid(), process.pid])
        assert (row["names"], row["other_references"]) == ([{"name": "of/dead", "namespace": ""}], 0)  # fmt: skip
        assert 8 << 20 <= row["live_bytes"] <= row["bytes"]
        assert unheld(leaks(), "of/") == ["of/other"]
        (line,) = [line for line in run("leaks", "--older", "0").stdout.splitlines() if "; name of/dead" in line]  # fmt: skip
        assert {f"{process.pid}", f"{os.getpid()}"} <= set(line.replace(",", " ").replace(";", " ").split())  # fmt: skip
        sent = pickle.dumps(held)
        assert orphans("of/dead")[0]["other_references"] == 1
        assert "name of/dead; 1 handle, fork or part of a tree" in run("leaks", "--older", "0").stdout  # fmt: skip
        cw.remove("of/dead")
        cw.remove("of/other")
        (row,) = [row for row in leaks()["orphans"] if row["slab"] == slab]
        assert (row["arrays"], row["names"], row["other_references"]) == (1, [], 1)
    pickle.loads(sent).close()
    held.close()
    run("limit", "set", "transit_seconds", "1")  # others may open the pickle, too
    assert eventually(lambda: not {row["slab"] for row in leaks()["orphans"] if row["arrays"]} - slabs)  # fmt: skip
    run("limit", "set", "transit_seconds", "300")


def test_memory_is_as_old_as_the_death_of_its_maker() -> None:
    left_by_the_dead("x = cw.put('of/first', np.ones(1 << 20), keep=True)")
    x = cw.get("of/first")
    assert 0 < orphans("of/first")[0]["age_seconds"] < 60
    assert eventually(lambda: orphans("of/first", older=1.5))
    left_by_the_dead("x = cw.put('of/second', np.ones(1 << 20), keep=True)")
    y = cw.get("of/second")
    assert orphans("of/second")[0]["age_seconds"] < orphans("of/first")[0]["age_seconds"] - 1
    assert orphans("of/first", older=3600) == []
    for array in (x, y):
        cw.remove(str(array.name))
        array.close()


def test_earlier_versions_of_a_tree_are_found_with_their_holders() -> None:
    tree = cw.put("tree", {"a": np.ones(10)})
    with child("t = cw.get('tree')") as process:
        tree = cw.put("tree", {"a": np.ones(20)})
        (row,) = leaks()["old_versions"]
        assert (row["name"], row["holders"], row["pids"]) == ("tree", 1, [process.pid])
        assert row["bytes"] == 80
        assert leaks(older=3600)["old_versions"] == []
        text = run("leaks", "--older", "0").stdout
        assert f"  {process.pid}  " in text
    assert eventually(lambda: leaks()["old_versions"] == [])
    tree.close()
    assert unheld(leaks(), "tree") == ["tree"]
    cw.remove("tree")


def test_all_namespaces_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    run("put", "spaced", str(tmp_path / "x.npy"), "--namespace", "other", "--keep")
    (row,) = [row for row in leaks()["unheld"] if row["name"] == "spaced"]
    assert row["namespace"] == "other"
    run("rm", "spaced", "--namespace", "other")


ODD = [
    "plain/name-1.x", "-dash", "--namespace", "with space", "it's", '"quoted"', "$(touch harmed)", "`id`", "a;b|c&d", "*", "~",
    "#no", "50%s", "back\\slash\\n", "\u202eturned\u202c", "-\u200bhid'den%d\\101", "\u00fc\u4e2d\U0001f600", "!x", "x=y", "{a,b}",
]  # fmt: skip


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("ours", ["", "mine", "-dash.ns"])
def test_the_command_that_is_advised_removes_that_name_when_it_is_pasted(shell: str, ours: str, tmp_path: Path) -> None:  # fmt: skip
    """Whatever the name, in this shell's namespace and in others."""
    keeper = cw.zeros(1)
    spaces = ["", "mine", "-dash.ns", "--all"]
    for space in spaces:
        with cw.connect(namespace=space):
            for name in ODD:
                cw.put(name, np.ones(3), keep=True).close()
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    env = {**os.environ, "CABLEWAY_NAMESPACE": ours, "PATH": path}
    rows = [row for row in leaks(env=env)["unheld"] if row["name"] in ODD]
    assert {(row["namespace"], row["name"]) for row in rows} == {(s, n) for s in spaces for n in ODD}  # fmt: skip
    # As text it stands at the end of its line, and no terminal sees anything but these very characters.
    commands = [row["remove"] for row in rows]
    assert all(command.isprintable() and "\u202e" not in command for command in commands)
    lines = run("leaks", "--older", "0", env=env).stdout.splitlines()
    told = [line[line.index("cableway rm") :] for line in lines if "cableway rm" in line]
    assert len(told) == 20  # rows are shown
    assert set(told) <= set(commands)
    for row in rows:
        done = subprocess.run([shell, "-c", row["remove"]], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (row, done)
    assert not [row for row in leaks(env=env)["unheld"] if row["name"] in ODD]
    assert list(tmp_path.iterdir()) == []
    assert keeper.nbytes == 8


def test_it_is_right_on_ten_thousand_arrays() -> None:
    names = [f"many/{i:05}" for i in range(10_000)]
    for name in names:
        cw.put(name, np.zeros(2, "f8"))
    held = [cw.get(name) for name in names[::100]]
    assert unheld(leaks(), "many") == sorted(set(names) - set(names[::100]))
    text = run("leaks", "--older", "0").stdout
    assert "and 98" in text  # 20 rows are shown
    assert "(--json lists all)" in text
    for array in held:
        array.close()
    for name in names:
        cw.remove(name)
    assert unheld(leaks(), "many") == []


def test_text_says_what_to_do_and_that_nothing_was_found() -> None:
    cw.put("text/a", np.ones(1000)).close()
    text = run("leaks", "--older", "0").stdout
    assert "text/a" in text
    assert text.splitlines()[2].endswith("cableway rm text/a")
    cw.remove("text/a")
    assert run("leaks", "--older", "3600").stdout.startswith("Nothing was found that is older than 3600 s")  # fmt: skip
    for wrong in (("--older", "soon"), ("--older", "-1"), ("extra",)):
        run("leaks", *wrong, expect=USAGE)


def test_a_broker_that_is_stopped_leaves_what_shared_memory_tells(broker_folder: Path) -> None:
    y = cw.empty(4 << 20)
    y.close()
    pid = running_broker(broker_folder)
    suspend(pid)
    try:
        done = run("leaks", "--older", "0", "--json", expect=FAILED)
        found = leaks(expect=FAILED)
        assert "not known" in run("leaks", "--older", "0", expect=FAILED).stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "does not answer" in done.stderr
    assert found["unheld"] is found["transits"] is found["old_versions"] is None
    for row in found["orphans"]:
        assert row["holders"] is row["pids"] is row["names"] is row["other_references"] is None
    assert [row for row in found["caches"] if row["pid"] == os.getpid()]
    assert eventually(lambda: leaks()["unheld"] is not None)


def test_without_a_broker_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path / "d"))
    assert "no broker runs" in run("leaks", expect=NO_BROKER).stderr
