"""The rules of tests/tidy.py for all folders: small enough to be read, with a page that says what they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

import tidy_c

FOLDERS = ("shm/", "ipc/", "broker/", "tools/", "py/", "tests/")
SOURCES = (
    ".c",
    ".h",
    ".py",
    ".sh",
    ".mk",
)  # of a compiled module the .pyi is no source: that lies elsewhere
SOURCES_MAX = 25
README_LINES_MAX = 15
# Modules in the place of other projects'; the folder above says what they are.
OF_OTHERS = ("tests/py/support/standins", "tests/py/suites/cpython", "tests/py/suites/loky_suite")


def that_cannot_be_read(texts: Mapping[str, str]) -> Iterator[str]:
    """Of all files by their names: folders with too many sources, and with no README.md, a long or an untrue one."""
    sources: dict[str, int] = {}
    for name in texts:
        if name.startswith(FOLDERS) and name.endswith(SOURCES):
            folder = name.rpartition("/")[0]
            sources[folder] = sources.get(folder, 0) + 1
    for folder, count in sorted(sources.items()):
        if folder.startswith(OF_OTHERS):
            continue
        text = texts.get(f"{folder}/README.md", "")
        lines = text.count("\n")
        told = tidy_c.told(folder)
        if count > SOURCES_MAX:
            yield f"{folder}: {count} source files, more than {SOURCES_MAX}"
        if lines > README_LINES_MAX:
            yield f"{folder}/README.md: {lines} lines, more than {README_LINES_MAX}"
        if not lines:
            yield f"{folder}: has no README.md"
        elif told and f"May include: {told} " not in " ".join([*text.split(), ""]):
            yield f"{folder}/README.md: has no line 'May include: {told}'"


QUESTIONS = 20
QUESTION = re.compile(r"^\d+\. (?P<question>.*\?) (?P<answer>.+)$", re.MULTILINE)


def questions_without_answers(page: str, names: Set[str]) -> Iterator[str]:
    """Of CONTRIBUTING.md and the names of all files: whether the newcomer's questions are twenty, answered by paths that exist."""
    section = page.partition("## Twenty questions\n")[2].partition("\n## ")[0]
    found = [*QUESTION.finditer(section)]
    if len(found) != QUESTIONS:
        yield f"CONTRIBUTING.md: {len(found)} questions with their answers, not {QUESTIONS}"
    folders = {name.rpartition("/")[0] for name in names}
    for match in found:
        paths = re.findall(r"`([^`]+)`", match["answer"])
        if not paths:
            yield f"CONTRIBUTING.md: no path answers {match['question']!r}"
        for path in paths:
            if path not in names and path.rstrip("/") not in folders:
                yield f"CONTRIBUTING.md: {path} is not there: {match['question']}"
            elif not any(
                f"{place}/README.md" in names
                for place in (path.rstrip("/"), path.rpartition("/")[0])
            ):
                yield f"CONTRIBUTING.md: no README.md stands beside {path}: {match['question']}"
