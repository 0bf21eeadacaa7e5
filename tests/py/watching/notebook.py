"""A notebook, run by a kernel as Jupyter runs it. In a process of its own: what has imported ipykernel passes for a notebook."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

SECONDS = 100


def is_here() -> bool:
    """Whether what runs notebooks is installed."""
    return all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel"))


def run(*cells: str, hide: tuple[str, ...] = ()) -> list[Any]:
    """The cells after they have run; an exception in one of them is raised.

    Args:
        hide: modules that its programs do not find.
    """
    before = [f"import sys; sys.modules[{name!r}] = None" for name in hide]
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps([*before, *cells]), capture_output=True, text=True,
        timeout=2 * SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["cells"][len(before) :])


def outputs(cell: Any, kind: str = "text/html") -> list[str]:
    """What a cell shows, of one kind."""
    return ["".join(output["data"][kind]) for output in cell["outputs"] if kind in output.get("data", {})]  # fmt: skip


def main() -> None:
    """Runs the cells of stdin, and prints the notebook."""
    import nbclient
    import nbformat

    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
    client = nbclient.NotebookClient(made, timeout=SECONDS)
    manager = client.create_kernel_manager()
    manager.kernel_spec_manager.ensure_native_kernel = (
        True  # this Python, whatever kernels are installed
    )
    manager.kernel_name = "python3"
    client.execute()
    print(json.dumps(made))


if __name__ == "__main__":
    main()
