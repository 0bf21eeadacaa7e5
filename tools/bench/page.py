"""Pages of docs/benchmarks from what was printed on machines that are not at hand.

    page.py gpu ONE TWO [BRIDGE] [--four FILE]
        logs.txt of `tests/gpu/run.sh BUILD one` and `two`, what bench_bridge_gpu.py said, and logs.txt of `two` on a
        machine with four GPUs; of a step that is in a file twice the later one counts
    page.py rows FILE...
        JSON lines of tools/bench

The tables go to stdout, under what the page's file has above the line of MARK, which is kept: so a new run replaces
figures and no words. With --into FILE the file is written.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from bridge.targets import bridge_targets
from targets import Results, Row, Target, number
from targets import targets as pool_targets
from wrapped import wrapped

MARK = "<!-- below this line: tools/bench/page.py -->"

# Why a promise is missed, by what its line begins with.
WHY = {
    "IPC events": "between two GPUs the driver's events are as fast as flags; on one GPU an event waits for its process's "
    "turn, and there the promise was made, and is kept",
    "NCCL by ours: GPU to GPU, 1 MiB": "NCCL took 41 us in this run and 48 in others; ours 12 to 15",
    "GPU to GPU across the bridge, 8 streams, 16 MiB": "3.5 to 4 ms, of which host to host takes 2.6 and OpenSSL's loops 2 to "
    "2.7; the rest is the first copy out and the last one in, whose jobs go through broker and mover",
}


def why(what: str) -> str:
    """The reason for a missed promise."""
    return next((reason for begin, reason in WHY.items() if what.startswith(begin)), "")


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def head(*names: str) -> list[str]:
    """The head of a table, with an empty line before it."""
    return ["", row(*names), "|" + "---|" * len(names)]


def sections(path: Path) -> dict[str, tuple[str, str]]:
    """Of a logs.txt: what the table says of a step, and what it printed."""
    found = {}
    for text in path.read_text().split("######## ")[1:]:
        line, _, rest = text.partition("\n")
        name, seconds, said = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        found[name] = (
            said if said.startswith(("ok", "NOT", "MISSED")) else f"{seconds} {said}",
            rest,
        )
    return found


def columns(line: str) -> list[str]:
    """What stands apart by two spaces and more."""
    return re.split(r"\s{2,}", line.strip())


def between(text: str, begin: str, end: str) -> list[str]:
    """The lines of a table: after the one that begins so, until an empty one or one that begins with end."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(begin)), len(lines))
    found = []
    for line in lines[first + 1 :]:
        if not line.strip() or line.startswith(end):
            break
        found.append(line)
    return found


def of_gpu(text: str) -> Iterator[str]:
    """The tables of bench_gpu."""
    yield from head("promise", "target", "found", "")
    for line in between(text, "promise ", "# all"):
        cells = columns(line)
        if "not measured" not in cells and len(cells) == 4:
            what, target, found, verdict = cells
            missed = f"**missed**; {why(what)}".rstrip("; ")
            yield row(what, target, found, missed if verdict == "MISSED" else verdict)
    yield from head("what", "ours", "beside", "", "", "ours by it", "p10 to p90, ours and its")
    for line in between(text, "what ", "promise"):
        what, ours = line[:62].strip(), line[62:73].strip()
        peer, _, rest = (
            line[75:].rstrip().partition("  ") if line[75:76].strip() else ("", "", line[75:])
        )
        cells = columns(rest) if rest.strip() else []
        if peer and len(cells) >= 2:
            by, spread = (cells[2], " ".join(cells[3:])) if len(cells) > 2 else ("", "")
            yield row(what, ours, peer, *cells[:2], by, spread.replace(" |", ";"))
        elif not peer and cells:
            yield row(what, ours, "", "", cells[-1], "", "")


def of_pool(text: str) -> Iterator[str]:
    """The table of bench_gpu_pool."""
    yield from head("what", "target", "found", "")
    for line in between(text, "what ", " "):
        what, target, met, found = (
            line[a:b].strip() for a, b in ((0, 62), (63, 87), (88, 92), (93, None))
        )
        if re.fullmatch(r"\d+ s on \d+ GPUs", line.strip()):
            continue
        missed = f"**missed**; {why(what)}".rstrip("; ")
        yield row(what, target, found, {"yes": "met", "NO": missed}.get(met, ""))


def of_staged(text: str) -> Iterator[str]:
    """The table of bench_gpu_staged."""
    yield from head(
        "staged copy between two GPUs, GB/s",
        "ours",
        "GPU to host",
        "host to GPU",
        "both at once",
        "by both (target 0.85 from 64 MiB on)",
    )
    for line in between(text, "staged copy", "#"):
        what, ours, out, come, both, _, by = columns(line)
        yield row(what, ours, out, come, both, by)


def of_bridge(path: Path) -> Iterator[str]:
    """What bench_bridge_gpu said, also with --explain: the slowest part of the way is TLS, by OpenSSL's loops."""
    yield from ["", "## GPU arrays across the bridge (loopback)"]
    yield from head("what", "GB/s", "the parts of the way, GB/s", "by the slowest", "target", "")
    for line in path.read_text().splitlines():
        found = re.match(
            r"GPU to GPU across the bridge, loopback, (.*): ([\d.]+) GB/s; (.*); ([\d.]+) of the slowest",
            line,
        ) or re.match(
            r"(\d+ streams, \d+ MiB): GPU to GPU ([\d.]+) GB/s, (.*); of OpenSSL's ([\d.]+) and",
            line,
        )
        if found:
            what, ours, parts, by = found.groups()
            missed = f"**missed**; {why(f'GPU to GPU across the bridge, {what}')}".rstrip("; ")
            verdict = "met" if float(by) >= 0.8 else missed
            yield row(what, ours, parts, by, "at least 0.8", verdict)


def of_tests(steps: dict[str, tuple[str, str]]) -> Iterator[str]:
    """What passed, what did not, deaths and the sanitizer."""
    passed = sum(
        int(n) for said, _ in steps.values() for n in re.findall(r"\b(\d+) passed", said)[:1]
    )
    yield from ["", f"Tests: {passed} passed. Steps that were not ok:"]
    bad = [
        f"- {name}: {said.removeprefix('NOT OK').strip()}"
        for name, (said, _) in steps.items()
        if said.startswith("NOT")
    ]
    yield from bad or ["none."]
    for name in ("deaths", "sanitize"):
        lines = [
            line
            for line in steps.get(name, ("", ""))[1].splitlines()
            if line.startswith(("fence_deaths: ", "compute-sanitizer: "))
        ]
        yield from ["", *(f"- {line}" for line in lines)] if lines else []


def gpu(one: Path, two: Path, four: Path | None, bridge: Path | None) -> Iterator[str]:
    """The page of a GPU machine."""
    for title, path in (("One GPU", one), ("Two GPUs", two), ("Four GPUs", four)):
        if path is None:
            continue
        steps = sections(path)
        yield from ["", f"## {title}"]
        for name, table in (
            ("bench-gpu", of_gpu),
            ("bench-staged", of_staged),
            ("bench-pool", of_pool),
        ):
            if name in steps:
                yield from table(steps[name][1])
        yield from of_tests(steps)
    yield from of_bridge(bridge) if bridge else ()


def rows(files: list[Path], cores: int, workers: int) -> Iterator[str]:
    """The page of JSON lines: promises, then all medians."""
    found, skipped = [], []
    for file in files:
        for line in file.read_text().splitlines():
            if line.startswith("{"):
                told = json.loads(line)
                if "skipped" in told:
                    skipped.append(told["skipped"])
                else:
                    found.append(Row(**told))
    results = Results(found)
    lines: list[Target] = [*pool_targets(results, workers, cores), *bridge_targets(results, cores)]
    yield from head("promise", "target", "found", "")
    for line in lines:
        if line.met is not None:
            yield row(line.what, line.promised, line.found, "met" if line.met else "**missed**")
    yield from head("what", "median", "p10 to p90", "", "samples")
    for one in found:
        yield row(
            f"{one.bench}: {one.name}",
            number(one.median),
            f"{number(one.p10)} to {number(one.p90)}",
            one.unit,
            str(one.samples),
        )
    yield from [f"\nNot measured: {one}" for one in skipped]


def main() -> None:
    """Prints or writes a page."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("kind", choices=("gpu", "rows"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--four", type=Path)
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--workers", type=int, default=16)
    given = parser.parse_args()
    if given.kind == "gpu":
        one, two, *more = given.files
        lines = list(gpu(one, two, given.four, more[0] if more else None))
    else:
        lines = list(rows(given.files, given.cores, given.workers))
    text = wrapped("\n".join([MARK, *lines]))
    if given.into:
        above, mark, _ = given.into.read_text().partition(MARK)
        if not mark:
            raise SystemExit(f"{given.into} has no line {MARK!r}")
        given.into.write_text(above + text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
