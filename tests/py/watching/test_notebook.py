"""In a notebook: `cw.status()`, a Pool, and `progress=True`, as a kernel sends them. Runs in `make test-more`."""

from __future__ import annotations

import json

import notebook
import pytest

pytestmark = pytest.mark.skipif(not notebook.is_here(), reason="no nbclient, or no ipykernel")

START = """import time
import cableway as cw
def square(x):
    time.sleep(0.03)
    return x * x
x = cw.put("notebook/<b>", [1, 2, 3])
pool = cw.Pool(2)"""
END = "pool.terminate(); pool.join()"


def test_the_state_and_a_pool_are_tables() -> None:
    made = notebook.run(START, "pool.map(square, range(4))", "cw.status()", "pool", "print(cw.status())", END)  # fmt: skip
    (status,) = notebook.outputs(made[2])
    assert "notebook/&lt;b&gt;" in status
    assert "<script" not in status
    assert notebook.outputs(made[2], "text/plain")[0].startswith("broker ")
    (pool,) = notebook.outputs(made[3])
    assert "cableway.Pool, 2 workers, RUN: 4 tasks done" in pool
    assert "".join(made[4]["outputs"][0]["text"]).startswith("broker ")


@pytest.mark.parametrize("hide", [("ipywidgets",), ("ipywidgets", "tqdm")])
@pytest.mark.parametrize(
    "call",
    [
        "pool.map(square, range(40), chunksize=1, progress=True)",
        "list(pool.imap(square, range(40), progress=True))",
        "list(pool.imap_unordered(square, iter(range(40)), progress=True))[:0] or [x * x for x in range(40)]",
        "pool.starmap(pow, [(x, 2) for x in range(40)], progress=True)",
    ],
)
def test_progress_is_one_output_that_is_updated(hide: tuple[str, ...], call: str) -> None:
    made = notebook.run(START, f"found = {call}\nassert found == [x * x for x in range(40)]", END, hide=hide)  # fmt: skip
    (shown,) = notebook.outputs(made[1])  # at its end, for who opens the notebook later
    (plain,) = notebook.outputs(made[1], "text/plain")
    assert plain.startswith("40 in " if "iter(" in call else "40 of 40 in ")
    assert plain in shown
    assert "left" not in plain
    assert all(output["output_type"] == "display_data" for output in made[1]["outputs"]), json.dumps(made[1]["outputs"])  # fmt: skip


def test_progress_moves_while_the_cell_runs_and_stays_where_an_error_ended_it() -> None:
    follow = """
from IPython.display import DisplayHandle
seen, update = [], DisplayHandle.update
def note(self, shown, **options):
    seen.append(shown["text/plain"])
    update(self, shown, **options)
DisplayHandle.update = note
def fails(x):
    time.sleep(0.03)
    if x == 60:
        raise ValueError(x)
try:
    pool.map(fails, range(100), chunksize=1, progress=True)
except ValueError:
    pass
print(seen)
"""
    made = notebook.run(START, follow, END, hide=("ipywidgets",))
    (said,) = ["".join(output["text"]) for output in made[1]["outputs"] if output["output_type"] == "stream"]  # fmt: skip
    seen = json.loads(said.replace("'", '"'))
    done = [int(text.split()[0]) for text in seen]
    assert len(done) >= 4
    assert done == sorted(done)
    assert 0 < done[0] < 60
    assert any(text.endswith("s left") for text in seen[:-1])
    (plain,) = notebook.outputs(made[1], "text/plain")
    assert plain == seen[-1]
    assert 60 <= int(plain.split()[0]) <= 100


def test_an_interrupted_cell_leaves_the_bar_where_it_was() -> None:
    stop = """
import os, signal, threading
threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    pool.map(square, range(100), chunksize=1, progress=True)
except KeyboardInterrupt:
    print("interrupted")
"""
    made = notebook.run(START, stop, "pool.map(abs, [-1])", END, hide=("ipywidgets",))
    assert any(output.get("text") == "interrupted\n" for output in made[1]["outputs"])
    (plain,) = notebook.outputs(made[1], "text/plain")
    assert 0 < int(plain.split()[0]) < 100
    assert notebook.outputs(made[2], "text/plain") == ["[1]"]
