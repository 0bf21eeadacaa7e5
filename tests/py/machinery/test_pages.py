"""What programs write into pages of docs/benchmarks has no line that an editor cuts, and says the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "tools/bench"
if not BENCH.exists():
    pytest.skip("no checkout", allow_module_level=True)
sys.path.insert(0, str(BENCH))

from wrapped import ROW, WIDTH, wrapped  # noqa: E402

LONG = "words that are said 12. times - and + again `code | with blanks` [a link](to it)"
PAGE = f"""# A page

{" ".join([LONG] * 5)}

- {" ".join([LONG] * 3)}
  - {" ".join([LONG] * 3)}

| a | b | c |
|---|---|---:|
| {LONG} | `x \\| y` and {LONG} | {LONG} |
  | {"x" * 90} | {"y " * 50}| 3 |

```
{"code " * 60}|
```
"""


def without(page: str, *marks: str) -> list[str]:
    """The words of a page."""
    for mark in marks:
        page = page.replace(mark, " ")
    return page.split()


def test_no_line_is_long_but_those_of_code() -> None:
    page = wrapped(PAGE)
    text, code, _ = page.split("```")
    assert max(map(len, text.splitlines())) <= ROW
    assert all(len(line) <= WIDTH for line in text.splitlines() if "|" not in line)
    assert code == PAGE.split("```")[1]
    assert wrapped(page) == page


def test_it_says_the_same() -> None:
    page = wrapped(PAGE)
    assert sorted(without(page, "|")) == sorted(without(PAGE, "|"))
    for line in page.partition("```")[0].splitlines():
        assert line.count("`") % 2 == 0 and line.count("[") == line.count("](to it)")
        if line.lstrip().startswith("|"):
            assert re.sub("`[^`]*`", "", line).count("|") == 4  # as many cells as ever
        else:  # begins no list that was none
            assert not line.lstrip().startswith(("12. ", "+ "))
    items = [line for line in page.splitlines() if line.lstrip().startswith("- ")]
    assert len(items) == 2
