"""The rules of tests/tidy.py for all folders: small enough to be read, with a page that says what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import tidy_c

FOLDERS = ("shm/", "ipc/", "broker/", "tools/", "py/", "tests/")
SOURCES = (".c", ".h", ".py", ".pyi", ".sh", ".mk")
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
        elif told and f"May include: {told}\n" not in text:
            yield f"{folder}/README.md: has no line 'May include: {told}'"
