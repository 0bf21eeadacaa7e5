"""The code blocks of README.md and of docs/guide, each as the whole program that a reader copies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GPU = re.compile(r"[\"']cuda|^ *(import|from) .*\b(cupy|torch|numba)\b", re.MULTILINE)
LIBRARY = re.compile(r"^ *(?:import|from)\b.*\b(cupy|torch|jax)\b", re.MULTILINE)

SAME = re.compile(r"(import|from|#) ?")  # many blocks begin with such lines


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the page, relative to the root.
        line: where its code begins.
        kind: what stands behind the fence.
        code: the block itself.
        output: what the page shows as its output: the block of kind `text` right behind it.
    """

    page: str
    line: int
    kind: str
    code: str
    output: str | None

    @property
    def name(self) -> str:
        """The page and the first line that tells blocks apart, by which lists of blocks name it."""
        lines = [line for line in self.code.splitlines() if line and not SAME.match(line)]
        return f"{self.page}: {re.split('  +', lines[0])[0]}"

    @property
    def needs_gpu(self) -> bool:
        """Whether it asks for a GPU."""
        return self.kind == "python" and bool(GPU.search(self.code))

    @property
    def library(self) -> str:
        """The GPU library that it imports, if any: the driver's test double computes nothing for these."""
        found = LIBRARY.search(self.code)
        return found[1] if found and self.kind == "python" else ""


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page but the outputs."""
    text = page.read_text()
    found: list[Block] = []
    fences = list(FENCE.finditer(text))
    for number, fence in enumerate(fences):
        if fence[1] == "text":
            continue
        after = fences[number + 1] if number + 1 < len(fences) else None
        output = None
        if after and after[1] == "text" and not text[fence.end() : after.start()].strip():
            output = after[2]
        line = text.count("\n", 0, fence.start(2)) + 1
        found.append(Block(page.relative_to(ROOT).as_posix(), line, fence[1], fence[2], output))
    return found


def blocks(kind: str) -> list[Block]:
    """The blocks of one kind on all pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.kind == kind]
