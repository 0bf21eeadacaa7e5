#!/usr/bin/env python3
"""The house rules as a test: size, direction of includes, words, layout, and docs that name what the code has.

Prints TAP. Each rule is a function that yields sentences, one for each breach: PATH:LINE: what is wrong.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tidy_c
import tidy_commits
import tidy_folders
import tidy_python
import tidy_recursion
import tidy_words

ROOT = Path(__file__).resolve().parent.parent

LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# Files that may be longer, and why.
LONG_FILES = {
    "broker/bridge/serve/upload.c": "an array that a peer reads, from its OPEN to its hash",
    "ipc/cableway.h": "the one public header",
    "py/cableway/array.py": "the face of one noun, docstrings for the most part",
    "py/cableway/_pool/engine.py": "what a Pool is, from its start to its end",
    "tests/model/scenarios/dispatch.c": "the scenarios of one protocol",
    "tests/py/support/gpu_standins.py": "stand-ins of six libraries, one after another",
    "tests/unit/ipc/test_client.c": "the promises of one interface, one after another",
    "tests/unit/shm/test_dispatch.c": "the promises of one noun, one after another",
    "tests/unit/ipc/test_pool.c": "the promises of one interface, one after another",
    "tests/unit/shm/test_queue.c": "the promises of one interface, one after another",
    "tests/unit/shm/test_shm_directory.c": "the promises of one noun, one after another",
}
# Functions that may be longer, and why.
LONG_FUNCTIONS: dict[str, str] = {}

# Width of a line in any text of docs.
WIDTH_MAX = 160
# Lines under one heading of the page on architecture.
PAGE_LINES = 60
# A file of C or Python, perhaps with its folder; not a pattern, and not a method of something.
FILE_NAME = re.compile(r"(?<![\w*{}$%<./-])((?:[\w-]+/)*[\w-]+\.(?:c|h|py))\b(?![\w(*])")
FILES_OF_USERS = {"job.py", "prog.c", "train.py", "linux/pidfd.h"}

# Figures in documents that a source decides: document, how it is told there, source, name of the constant. `256 KiB` is a number.
FIGURES = [
    ("docs/PROTOCOL.md", r"MEMORY-MODEL\.md\)\. Version \*\*(\d+)\*\*", "ipc/wire.h", "CW_PROTOCOL_VERSION"),
    ("docs/PROTOCOL.md", r"cablewayd-v(\d+)", "ipc/wire.h", "CW_PROTOCOL_VERSION"),
    ("docs/PROTOCOL.md", r"with the one that holds\. Version (\d+) is", "ipc/wire.h", "CW_PROTOCOL_VERSION"),
    ("docs/PROTOCOL.md", r"\*\*CW_PLACED_MAX\*\*, (\d+) bytes", "ipc/wire.h", "CW_PLACED_MAX"),
    ("docs/PROTOCOL.md", r"of the whole message, at most (\d+)", "ipc/wire.h", "CW_MESSAGE_MAX"),
    ("docs/PROTOCOL.md", r"Version (\d+) is the only one that this release speaks; a HELLO", "broker/bridge/wire/frame.h", "CWB_VERSION"),
    ("docs/PROTOCOL.md", r"A peer has at most (\d+) WAITs", "broker/bridge/wire/frame.h", "CWB_WAITS_MAX"),
    ("docs/man/cableway-bridge.1", r"(\d+) waits", "broker/bridge/wire/frame.h", "CWB_WAITS_MAX"),
    ("docs/man/cablewayd.1", r"cablewayd\\-v(\d+)\.sock", "ipc/wire.h", "CW_PROTOCOL_VERSION"),
    ("docs/guide/troubleshooting.md", r"cablewayd-v(\d+)", "ipc/wire.h", "CW_PROTOCOL_VERSION"),
    ("docs/guide/pool-and-executor.md", r"a NumPy array of (\d+ KiB) or more", "py/cableway/_transport/blocks.py", "THRESHOLD_BYTES"),
    ("docs/guide/queues.md", r"another buffer of (\d+ KiB) or more", "py/cableway/_queue/items.py", "THRESHOLD_BYTES"),
    ("docs/guide/faults.md", r"items of up to (\d+ KiB)", "py/cableway/_queue/items.py", "THRESHOLD_BYTES"),
]  # fmt: skip
# The same for defaults of limits, which stand in CW_LIMITS of shm/session/monitor.h.
DEFAULTS = [
    ("README.md", r"(\d+) processes a broker by default", "max_clients"),
    ("docs/guide/slurm.md", r"(\d+) processes by default", "max_clients"),
    ("docs/guide/troubleshooting.md", r"(\d+) processes by default", "max_clients"),
    (
        "docs/guide/troubleshooting.md",
        r"(\d+) s later \(`names_linger_seconds`",
        "names_linger_seconds",
    ),
    ("docs/guide/troubleshooting.md", r"after (\d+) s \(`transit_seconds`", "transit_seconds"),
    ("docs/guide/installing.md", r"each for (\d+) s", "transit_seconds"),
    ("docs/guide/installing.md", r"array stays for (\d+) s more", "pickle_seconds"),
    ("docs/guide/troubleshooting.md", r"for (\d+) s more \(`pickle_seconds`", "pickle_seconds"),
    ("docs/guide/installing.md", r"latest ([\d,]+) pickles", "max_client_transits"),
]

TOP = {
    ".ci", ".clang-format", ".clang-tidy", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "README.md", "SECURITY.md", "broker", "docs", "ipc", "py", "shm", "tests", "tools",
}  # fmt: skip

# Headers that one place alone may name.
ONE_PLACE = {
    "cuda.h": r"ipc/cuda/driver\.h|tests/fakecuda/.*",
    "liburing.h": r"broker/bridge/.*|tools/bench/programs/bench_send\.c",
}

WORDS = re.compile(
    r"\b(TODO|FIXME|XXX|HACK|WIP|stub|stubbed|placeholder|lorem|for now|temporary hack|not implemented yet"
    r"|coming soon|work/main)\b",
    re.IGNORECASE,
)
RAW_ATOMIC = re.compile(
    r"\b(__atomic_\w+|__sync_\w+|atomic_(load|store|exchange|fetch|compare|thread_fence)\w*)\s*\("
)
LABELLED = re.compile(r"\bCW_(?:LOAD|STORE|XCHG|ADD|CAS)\(\s*([A-Z]+[0-9]+)\s*,")


def listed_by_git(*options: str) -> list[str] | None:
    """What git ls-files lists; None where there is no repository."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *options]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if listed.returncode else [name for name in listed.stdout.split("\0") if name]


def files() -> list[Path]:
    """All files of the project: tracked, and new ones in its folders that git does not ignore.

    What a user left at the top and git does not know (`make test > t.log`, an environment) is the user's own.
    """
    tracked = listed_by_git()
    if tracked is not None:
        new = listed_by_git("-o", "--exclude-standard") or []
        names = tracked + [name for name in new if name.split("/")[0] in TOP]
        return sorted(p for p in (ROOT / name for name in names) if p.is_file())
    return sorted(
        p for p in ROOT.rglob("*") if p.is_file() and p.relative_to(ROOT).parts[0] != "build"
    )


def text_of(path: Path) -> str:
    """The text of a file; empty for what is not text."""
    data = path.read_bytes()
    # A fuzzer's input is no text, whatever it looks like.
    if b"\0" in data or "corpus" in path.parts:
        return ""
    return data.decode("utf-8", "replace")


FILES = files()
NAMES = {path: path.relative_to(ROOT).as_posix() for path in FILES}
TEXTS = {path: text_of(path) for path in FILES}


def sources(*folders: str, suffixes: tuple[str, ...] = (".c", ".h")) -> Iterator[tuple[str, str]]:
    """Names and texts of the C files below the folders."""
    for path, name in NAMES.items():
        if path.suffix in suffixes and name.split("/")[0] in folders:
            yield name, TEXTS[path]


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1."""
    yield from enumerate(text.splitlines(), 1)


def few_files_are_long() -> Iterator[str]:
    """No file is over the limit without a reason."""
    for path, name in NAMES.items():
        count = TEXTS[path].count("\n")
        if count > LINES_MAX and name not in LONG_FILES and path.suffix != ".md":
            yield f"{name}: {count} lines, more than {LINES_MAX}: split it, or list it in LONG_FILES with the reason"
    for name in LONG_FILES:
        if not (ROOT / name).exists():
            yield f"LONG_FILES names {name}, which is not there"


def few_functions_are_long() -> Iterator[str]:
    """No function is over the limit without a reason."""
    for name, text in sources("shm", "ipc", "broker", "tools", "py"):
        start, function = 0, ""
        for number, line in numbered(text):
            head = re.match(r"^[a-zA-Z_].*?(\w+)\(", line)
            if head and not line.startswith(("#", "typedef")) and not line.rstrip().endswith(";"):
                start, function = number, head[1]
            if line == "}" and function:
                if (
                    number - start > FUNCTION_LINES_MAX
                    and f"{name}:{function}" not in LONG_FUNCTIONS
                ):
                    yield f"{name}:{start}: {function} has {number - start} lines, more than {FUNCTION_LINES_MAX}"
                function = ""


def includes_point_one_way() -> Iterator[str]:
    """A folder of the C code includes what the table says."""
    yield from tidy_c.includes_against_the_table({NAMES[p]: TEXTS[p] for p in FILES})


def folders_can_be_read() -> Iterator[str]:
    """Few files in each, and a page that says what they are."""
    yield from tidy_folders.that_cannot_be_read({NAMES[p]: TEXTS[p] for p in FILES})


def python_imports_point_one_way() -> Iterator[str]:
    """A folder of the package imports what the table says."""
    yield from tidy_python.imports_against_the_table({NAMES[p]: TEXTS[p] for p in FILES})


def no_lock_stays_locked() -> Iterator[str]:
    """A signal's handler may raise at any moment."""
    yield from tidy_python.loops_under_locks({NAMES[p]: TEXTS[p] for p in FILES})


def recursions_across_files_are_few() -> Iterator[str]:
    """No function calls itself by way of another file, and no module imports itself, but for those that are listed."""
    yield from tidy_recursion.recursions({NAMES[p]: TEXTS[p] for p in FILES})


def names_are_the_fields_words() -> Iterator[str]:
    """A private word stands in no more names than before."""
    yield from tidy_words.private_words({NAMES[p]: TEXTS[p] for p in FILES})


def subjects_of_commits_are_short() -> Iterator[str]:
    """A list of commits can be read."""
    yield from tidy_commits.with_long_subjects(tidy_commits.of(ROOT))


def twenty_questions_have_answers() -> Iterator[str]:
    """What a newcomer asks is answered by a folder, whose page says so."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    yield from tidy_folders.questions_without_answers(text, set(NAMES.values()))


def special_headers_have_one_place() -> Iterator[str]:
    """One file names <cuda.h>, one folder and its benchmark <liburing.h>."""
    for name, text in sources("shm", "ipc", "broker", "tools", "py"):
        for number, line in numbered(text):
            match = re.match(r"\s*#\s*include\s+<([^>]+)>", line)
            if match and match[1] in ONE_PLACE and not re.fullmatch(ONE_PLACE[match[1]], name):
                yield f"{name}:{number}: <{match[1]}> belongs to {ONE_PLACE[match[1]]}"


def no_leftover_words() -> Iterator[str]:
    """Nothing unfinished is marked by a word, since nothing is left unfinished; no path of a machine."""
    for path, name in NAMES.items():
        if path == Path(__file__).resolve():
            continue
        for number, line in numbered(TEXTS[path]):
            match = WORDS.search(line)
            if match:
                yield f"{name}:{number}: the word {match[0]!r}"


def the_top_folder_is_as_designed() -> Iterator[str]:
    """A newcomer finds nothing unexpected at the door."""
    for name in sorted({name.split("/")[0] for name in NAMES.values()} - TOP):
        yield f"{name}: not part of the layout; if it belongs there, add it to TOP"
    for name in sorted(TOP):
        if not (ROOT / name).exists():
            yield f"{name}: missing"


def docs_name_every_limit_and_counter() -> Iterator[str]:
    """What can be set or read is documented."""
    docs = "\n".join(
        TEXTS[p]
        for p, name in NAMES.items()
        if name.startswith("docs/") and p.suffix in (".md", ".1", ".5", ".7", ".8")
    ).replace("\\-", "-")
    header = (ROOT / "shm" / "session" / "monitor.h").read_text()
    for kind in ("LIMITS", "COUNTERS", "GAUGES"):
        body = re.search(rf"#define CW_{kind}\(X\)(.*?)\n\n", header, re.DOTALL)
        for word in re.findall(r"X\((\w+),", body[1] if body else ""):
            if not re.search(rf"\b{word}\b", docs):
                yield f"docs: {word} (CW_{kind} in shm/session/monitor.h) stands in no document"


def atomics_have_labels_and_labels_have_rows() -> Iterator[str]:
    """Shared words are touched through shm/base/atomic.h, and docs/MEMORY-MODEL.md has a row for each label."""
    model = ROOT / "docs" / "MEMORY-MODEL.md"
    rows = model.read_text() if model.exists() else ""
    for name, text in sources("shm", "ipc", "broker", "tools", "py"):
        if name == "shm/base/atomic.h":
            continue
        for number, line in numbered(text):
            raw = RAW_ATOMIC.search(line)
            if raw:
                yield f"{name}:{number}: {raw[1]} without a label; use the macros of shm/base/atomic.h"
            for label in LABELLED.findall(line):
                if not re.search(rf"\b{label}\b", rows):
                    yield f"{name}:{number}: label {label} has no row in docs/MEMORY-MODEL.md"


def sources_say_what_they_are() -> Iterator[str]:
    """A C file opens with a comment, a Python file with a docstring, a script with a comment."""
    for path, name in NAMES.items():
        text = TEXTS[path]
        if path.suffix in (".c", ".h") and not text.startswith("/*"):
            yield f"{name}:1: opens without a comment on what it is"
        if path.suffix == ".py" and not re.match(r'(#.*\n)*\s*r?"""', text):
            yield f"{name}:1: opens without a docstring"
        if path.suffix == ".sh" and not re.match(r"#!.*\n# ", text):
            yield f"{name}:2: opens without a comment on what it is"


def text_is_clean() -> Iterator[str]:
    """No trailing blanks, no carriage returns, a newline at the end, nothing large, no links into a build."""
    for path, name in NAMES.items():
        text = TEXTS[path]
        if path.stat().st_size > 1 << 20:
            yield f"{name}: {path.stat().st_size} bytes, more than 1 MiB"
        if text and not text.endswith("\n"):
            yield f"{name}: no newline at the end"
        for number, line in numbered(text):
            if line != line.rstrip() and path.suffix != ".md":
                yield f"{name}:{number}: blanks at the end of the line"


def the_environment_is_read_as_of_somebody_else() -> Iterator[str]:
    """secure_getenv, which finds nothing in a program that has more rights than its caller; what CUDA reads is CUDA's."""
    for name, text in sources("shm", "ipc", "broker", "tools"):
        for number, line in numbered(text):
            if re.search(r"(?<!secure_)\bgetenv\(", line) and not re.search(
                r"CUDA_VISIBLE_DEVICES|is_secure\(\) \?|tools/bench", f"{name} {line}"
            ):
                yield f"{name}:{number}: getenv(): use secure_getenv()"


def documents() -> Iterator[tuple[str, str]]:
    """Names and texts of what people read."""
    for path, name in NAMES.items():
        if path.suffix in (".md", ".1"):
            yield name, TEXTS[path]


def lines_of_documents_are_short() -> Iterator[str]:
    """A line of a document can be read in an editor, and a change of it in a diff."""
    for name, text in documents():
        for number, line in numbered(text):
            if len(line) > WIDTH_MAX:
                yield f"{name}:{number}: {len(line)} characters, more than {WIDTH_MAX}"


def sections_are_a_page_at_most() -> Iterator[str]:
    """What stands under one heading of docs/ARCHITECTURE.md is seen at once."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    headings = [(number, line) for number, line in numbered(text) if line.startswith("#")]
    ends = [number for number, _ in headings[1:]] + [text.count("\n") + 1]
    for (begin, heading), end in zip(headings, ends, strict=True):
        if end - begin > PAGE_LINES:
            yield f"docs/ARCHITECTURE.md:{begin}: {end - begin} lines, more than {PAGE_LINES}, stand under {heading!r}"


def files_that_are_named_are_there() -> Iterator[str]:
    """Who follows the name of a file in a comment or a document finds it."""
    parts = [name.split("/") for name in NAMES.values()]
    there = {"/".join(part[i:]) for part in parts for i in range(len(part))}
    for name, text in [*documents(), *sources("shm", "ipc", "broker", "tools", "tests")]:
        if name.endswith((".c", ".h")):  # their comments, line by line
            text = re.sub(r"/\*.*?\*/|[^\n]", lambda part: part[0] if part[0][1:] else " ", text, flags=re.DOTALL)  # fmt: skip
        for number, line in numbered(text):
            for named in FILE_NAME.findall(line):
                if named not in there and named not in FILES_OF_USERS:
                    yield f"{name}:{number}: names {named}, which is not there"


def number_of(words: str) -> int:
    """What `8192u`, `(16u << 10)`, `65,536` or `256 KiB` says."""
    plain = re.sub(r"(?<=\d)(u|ull)\b", "", words.replace(",", "").replace("KiB", "<< 10"))
    left, _, shift = plain.strip("() \n").partition("<<")
    return int(left) << int(shift or 0)


def constant(source: str, name: str) -> int:
    """A constant of a header or of a module."""
    text = (ROOT / source).read_text()
    found = re.search(rf"^(?:#define )?{name}(?: *=)?\s+(\(?\s*[\d][^)/#\n]*)", text, re.MULTILINE)
    assert found, f"{source} has no {name}"
    return number_of(found[1])


def figures_are_those_of_the_source() -> Iterator[str]:
    """What a document says of versions and limits is what the code has."""
    limits = dict(re.findall(r"X\((\w+), (\d+),", (ROOT / "shm/session/monitor.h").read_text()))
    told = [
        (document, words, constant(source, name), f"{name} of {source}")
        for document, words, source, name in FIGURES
    ]
    told += [
        (document, words, int(limits[name]), f"the default of {name}")
        for document, words, name in DEFAULTS
    ]
    told += [
        (
            "docs/man/cablewayd.1",
            rf'\.BR {name} " \((\d+)\)"',
            int(default),
            f"the default of {name}",
        )
        for name, default in limits.items()
    ]
    for document, words, right, what in told:
        text = " ".join((ROOT / document).read_text().split())  # wherever lines end
        said = re.findall(words, text)
        if not said:
            yield f"{document}: nothing there is like {words!r}, by which {what} was told"
        for figure in said:
            if number_of(figure) != right:
                yield f"{document}: says {figure} where {what} is {right}"


def versions_are_that_of_the_header() -> Iterator[str]:
    """One version everywhere."""
    found = re.search(r'define CW_VERSION +"([^"]+)"', (ROOT / "ipc/cableway.h").read_text())
    version = found[1] if found else "?"
    places = {
        "CHANGELOG.md": f"\n## [{version}]",
        "py/cableway/__init__.py": f'__version__ = "{version}"',
    }
    places.update({name: f'"cableway {version}"' for name, _ in documents() if name.endswith(".1")})
    for name, words in places.items():
        if words not in (ROOT / name).read_text():
            yield f"{name}: does not say {words.strip()!r}, and CW_VERSION is {version}"


def figures_of_the_readme_were_measured() -> Iterator[str]:
    """What README's table says of speed stands in a page of docs/benchmarks."""
    pages = "".join(text for name, text in documents() if name.startswith("docs/benchmarks/"))
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if "|" in line]
    figures = [figure for row in rows for figure in re.findall(r"([\d,.]*\d) (?:ms|us|s)\b", row)]
    if len(figures) < 10:
        yield f"README.md: {len(figures)} measured figures were found in its table"
    for figure in figures:
        if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,]*\d)", pages):
            yield f"README.md: {figure} stands in no page of docs/benchmarks"


RULES = [
    few_files_are_long,
    few_functions_are_long,
    includes_point_one_way,
    folders_can_be_read,
    python_imports_point_one_way,
    no_lock_stays_locked,
    recursions_across_files_are_few,
    names_are_the_fields_words,
    subjects_of_commits_are_short,
    twenty_questions_have_answers,
    special_headers_have_one_place,
    no_leftover_words,
    the_top_folder_is_as_designed,
    docs_name_every_limit_and_counter,
    atomics_have_labels_and_labels_have_rows,
    the_environment_is_read_as_of_somebody_else,
    sources_say_what_they_are,
    text_is_clean,
    lines_of_documents_are_short,
    sections_are_a_page_at_most,
    files_that_are_named_are_there,
    figures_are_those_of_the_source,
    versions_are_that_of_the_header,
    figures_of_the_readme_were_measured,
]


def main() -> int:
    """Applies every rule and prints TAP."""
    status = 0
    for number, rule in enumerate(RULES, 1):
        breaches = list(rule())
        print(f"{'not ok' if breaches else 'ok'} {number} - {rule.__name__.replace('_', ' ')}")
        for breach in breaches:
            print(f"# {breach}")
        status |= bool(breaches)
    print(f"1..{len(RULES)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
