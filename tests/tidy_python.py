"""The rules of tests/tidy.py for the folders of the Python package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent / "py" / "cableway"

# What a folder of py/cableway may import: other folders, and modules at its top. Annotations may name anything.
ARRAYS = {"array", "client", "constant", "create", "device", "errors", "name", "stream", "transfers"}  # fmt: skip
MAY_IMPORT = {
    "_core": {"client", "errors"},
    "_cuda": {"_core"} | ARRAYS,
    "_array": {"_core", "_cuda"} | ARRAYS,
    "_tree": {"_core", "_cuda", "_array"} | ARRAYS,
    "_load": {"_core", "_cuda", "_array", "_tree", "tree"} | ARRAYS,
    "_engines": {"_core", "_cuda", "_array", "_tree", "_load", "tree"} | ARRAYS,
    "_transport": {"_core", "_cuda", "_array", "_tree", "tree"} | ARRAYS,
    "_pool/devices": {"_core", "_transport"} | ARRAYS,
    "_pool/launch": {"_core", "_pool/devices"},
    "_pool/worker": {"_core", "_transport", "_pool", "_pool/devices", "_pool/launch", "group"}
    | ARRAYS,
    "_pool": {"_core", "_watch", "_transport", "_pool/devices", "_pool/launch", "_pool/worker"}
    | ARRAYS,
    "_executor": {"_core", "_transport", "_pool", "errors"},
    "_joblib": {"_core", "_transport", "_pool", "_executor"} | ARRAYS,
    "_queue": {"_core", "_transport"} | ARRAYS,
    "_group": {"_core", "_cuda"} | ARRAYS,
    "_dask": {"_core", "_cuda"} | ARRAYS,
    "_ray": {"_core"} | ARRAYS,
    "_watch": {"_core"} | ARRAYS,
}
COMPILED = {"_cableway", "_dispatch", "_dlpack"}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each `from cableway... import` that runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cableway":
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        yield from imported(node)


def place_of(dotted: str) -> str:
    """The folder in which a module lies, or the module at the top, of which a dotted name tells."""
    parts = dotted.split(".")[1:]
    while parts and not TOP.joinpath(*parts).with_suffix(".py").is_file():
        if TOP.joinpath(*parts).is_dir() or parts[0] in COMPILED:
            return "/".join(parts)
        parts.pop()
    return "/".join(parts[:-1] or parts)


def imports_against_the_table(texts: Mapping[str, str]) -> Iterator[str]:
    """Of the files by their names: what a folder imports that MAY_IMPORT does not say."""
    for name, text in texts.items():
        folder = name.removeprefix("py/cableway/").rpartition("/")[0]
        if not name.endswith(".py") or not name.startswith("py/cableway/_") or not folder:
            continue
        allowed = MAY_IMPORT.get(folder)
        if allowed is None:
            yield f"{name}: MAY_IMPORT has no {folder}"
            continue
        for line, dotted in imported(ast.parse(text)):
            place = place_of(dotted)
            if place != folder and place.partition("/")[0] not in COMPILED and place not in allowed:
                yield f"{name}:{line}: imports {dotted}; {folder} may import {', '.join(sorted(allowed))}"


LOCK = re.compile(r"(self\.)?_?(\w+_)?(lock|guard|settling|watching)")


def loops_under_locks(texts: Mapping[str, str]) -> Iterator[str]:
    """Of the files by their names: a loop within a `with` of a lock, in which a conditional jump goes back. What a signal's handler raises
    there leaves the lock locked from Python 3.13 on (py/cableway/_core/locks.py).
    """
    for name, text in texts.items():
        if not name.endswith(".py") or not name.startswith("py/cableway/"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.With) and LOCK.fullmatch(ast.unparse(node.items[0])):
                for loop in ast.walk(node):
                    if jumps_back(loop):
                        yield f"{name}:{loop.lineno}: a loop in a `with` of a lock: let it call a function"  # type: ignore[attr-defined]


def jumps_back(node: ast.AST) -> bool:
    """Whether it is a loop whose next round begins by a conditional jump."""
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
        return any(part.ifs for part in node.generators)
    if isinstance(node, ast.For):
        last = node.body[-1]
        bare = isinstance(last, (ast.If, ast.For, ast.While)) and not last.orelse
        return bare or any(isinstance(part, ast.Continue) for part in ast.walk(node))
    return isinstance(node, ast.While)
