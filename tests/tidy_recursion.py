"""The rule of tests/tidy.py for recursions that cross files: there are none.

In C a function calls another by its name; calls through a pointer break a recursion, as a message to another thread does. In
Python modules that import each other count: who calls what there is not written in the text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

import tidy_python

FOLDERS = ("shm/", "ipc/", "broker/", "tools/", "py/csrc/")

Call = tuple[str, str]  # a function, with its file

DEFINITION = re.compile(
    r"^(?P<head>[A-Za-z_][^;{}=]*?\b(?P<name>\w+)\s*\([^;{}]*\))\s*\{(?P<body>.*?)^\}",
    re.DOTALL | re.MULTILINE,
)
NO_CODE = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)

Node = TypeVar("Node", bound=Hashable)


def code_of(text: str) -> str:
    """A text without comments, strings and directives."""
    return DIRECTIVE.sub("", NO_CODE.sub(" ", text))


def calls_of(texts: Mapping[str, str]) -> dict[Call, set[Call]]:
    """Which function calls which, of C files by their names."""
    found: list[tuple[Call, bool, str]] = []
    for name, text in texts.items():
        if name.startswith(FOLDERS) and name.endswith((".c", ".h")):
            for match in DEFINITION.finditer(code_of(text)):
                static = match["head"].startswith("static")
                found.append(((name, match["name"]), static, match["body"]))
    public = {function: (file, function) for (file, function), static, _ in found if not static}
    own = {call for call, static, _ in found if static}
    graph: dict[Call, set[Call]] = {}
    for (file, function), _, body in found:
        named = set(re.findall(r"(?<![.>\w])(\w+)\s*\(", body))
        called = {(file, word) if (file, word) in own else public.get(word) for word in named}
        graph[file, function] = {call for call in called if call}
    return graph


def imports_of(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Which module of the package imports which, when it is imported or later."""
    modules = {
        name.removeprefix("py/").removesuffix(".py").replace("/", "."): text
        for name, text in texts.items()
        if name.startswith("py/cableway/") and name.endswith(".py") and "__init__" not in name
    }
    graph: dict[str, set[str]] = {}
    for module, text in modules.items():
        dotted = {name for _, name in tidy_python.imported(ast.parse(text))}
        graph[module] = {
            found for name in dotted for found in (name, name.rpartition(".")[0]) if found in modules
        } - {module}  # fmt: skip
    return graph


def circles(graph: Mapping[Node, set[Node]]) -> Iterator[set[Node]]:
    """The nodes that lead to each other, by Kosaraju's two walks; one alone is no circle."""
    back: dict[Node, set[Node]] = {}
    for node, others in graph.items():
        for other in others:
            back.setdefault(other, set()).add(node)
    order: list[Node] = []
    seen: set[Node] = set()
    for begin in graph:
        if begin in seen:
            continue
        seen.add(begin)
        path = [(begin, iter(graph[begin]))]
        while path:
            node, others_left = path[-1]
            following = next((other for other in others_left if other not in seen), None)
            if following is None:
                order.append(path.pop()[0])
            else:
                seen.add(following)
                path.append((following, iter(graph.get(following, ()))))
    done: set[Node] = set()
    for begin in reversed(order):
        circle, left = set(), [begin]
        while left:
            node = left.pop()
            if node not in done:
                done.add(node)
                circle.add(node)
                left += back.get(node, ())
        if len(circle) > 1:
            yield circle


def recursions(texts: Mapping[str, str]) -> Iterator[str]:
    """Of all files by their names: recursions across files."""
    for circle in circles(calls_of(texts)):
        files = sorted({file for file, _ in circle})
        if len(files) > 1:
            functions = ", ".join(sorted(function for _, function in circle))
            yield f"{files[0]}: a recursion across {', '.join(files)}: {functions}"
    for modules in map(sorted, circles(imports_of(texts))):
        yield f"{modules[0]}: modules that import each other: {', '.join(modules)}"
