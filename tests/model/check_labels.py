#!/usr/bin/env python3
"""Compares the atomic operations of the source with docs/MEMORY-MODEL.md.

Every CW_LOAD, CW_STORE, CW_XCHG, CW_ADD and CW_CAS in shm/, ipc/, broker/ and tools/ must have a row
`| label | file | operation order | ...` in the document, and every row an operation in the source.

check_labels.py             compares; exit status 1 names what is missing or one too many
check_labels.py --list      the rows that the source asks for
check_labels.py --required  a C initialiser of the seq_cst operations, which the model must have seen
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "MEMORY-MODEL.md"
FOLDERS = ("shm", "ipc", "broker", "tools")
OPERATIONS = {"LOAD": "load", "STORE": "store", "XCHG": "exchange", "ADD": "add", "CAS": "cas"}
# EDGE(label, block, gen, from, to, order) is shm/blocks/block.c's shorthand for a CW_CAS.
CALL = re.compile(r"\b(?:CW_(LOAD|STORE|XCHG|ADD|CAS)|EDGE)\(")
ROW = re.compile(r"^\| *([A-Z]+\d*) *\| *`?([\w./]+)`? *\| *(\w+) (\w+) *\|")
Row = tuple[str, str, str, str]


def arguments(text: str, start: int) -> list[str]:
    """The arguments of a call whose opening parenthesis stands before start."""
    parts, depth, begin = [], 0, start
    for at in range(start, len(text)):
        char = text[at]
        if char in "([{":
            depth += 1
        elif char in ")]}" and depth:
            depth -= 1
        elif char == ")" or (char == "," and not depth):
            parts.append(text[begin:at].strip())
            begin = at + 1
            if char == ")":
                break
    return parts


def operations() -> set[Row]:
    """(label, file, operation, order) of every atomic in the source."""
    rows: set[Row] = set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            name = str(path.relative_to(ROOT))
            if name == "shm/base/atomic.h":
                continue
            text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
            for call in CALL.finditer(text):
                args = arguments(text, call.end())
                if args[0] != "label":  # the definition of EDGE
                    rows.add((args[0], name, OPERATIONS[call[1] or "CAS"], args[-1]))
    return rows


def documented() -> list[Row]:
    """The same, of the rows of the document."""
    matches = (ROW.match(line) for line in DOCUMENT.read_text().splitlines())
    return [(m[1], m[2], m[3], m[4]) for m in matches if m]


def main() -> int:
    """Runs one of the three commands."""
    found = operations()
    if "--list" in sys.argv:
        for row in sorted(found, key=lambda r: (r[0][0], int(re.sub(r"\D", "", r[0]) or 0), r)):
            print("| {} | {} | {} {} |".format(*row))
        return 0
    if "--required" in sys.argv:
        access = {"load": "MODEL_LOAD", "store": "MODEL_STORE"}
        for label, operation in sorted(
            {(r[0], access.get(r[2], "MODEL_RMW")) for r in found if r[3] == "seq_cst"}
        ):
            print(f'{{"{label}", {operation}}},')
        return 0
    rows = documented()
    wrong = [f"not in {DOCUMENT.name}: {' '.join(row)}" for row in sorted(found - set(rows))]
    wrong += [f"only in {DOCUMENT.name}: {' '.join(row)}" for row in sorted(set(rows) - found)]
    wrong += [
        f"twice in {DOCUMENT.name}: {' '.join(row)}"
        for row in sorted(set(rows))
        if rows.count(row) > 1
    ]
    print("\n".join(wrong) if wrong else f"{len(found)} atomic operations, all documented")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
