"""The rule of tests/tidy.py for words: a thing is called what the field calls it, and one word means one thing.

A private word is looked for where a name says what a thing is: in the name of a file, in a Python class, and behind the
prefix of a C name (cw_, cwb_, cwd_). There are names from before the rule; they may become fewer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import tidy_recursion

FOLDERS = ("shm/", "ipc/", "broker/", "tools/", "py/")

# The private word, what to write, and how many names have it still.
WORDS: dict[str, tuple[str, int]] = {
    "door": ("fast path", 0),
    "visitor": ("local client", 0),
    "board": ("replica cache, unnamed replicas", 0),
    "doubt": ("invalidation, stale", 0),
    "doubts": ("invalidation, stale", 0),
    "doubtful": ("stale", 0),
    "looks": ("replica garbage collection", 0),
    "sibling": ("co-located replica", 0),
    "take": ("download", 0),
    "source": ("upload", 1),
    "offered": ("incoming put", 0),
    "landing": ("GPU receive; in Python write-back", 0),
    "chunks": ("transfer plan", 1),
    "slots": ("staging buffers", 0),
    "strand": ("I/O thread", 0),
    "home": ("broker channel, unnamed replicas", 0),
    "calm": ("batched notify", 0),
    "urge": ("flush", 0),
    "awake": ("spin policy", 0),
    "naps": ("back-off", 0),
    "ghost": ("inherited references", 0),
    "lifeline": ("fork pipe", 0),
    "closer": ("untrusted-descriptor closer", 9),
    "custody": ("slab registry", 0),
    "place": ("rendezvous; room", 1),
    "lane": ("channel", 0),
    "post": ("deferred message", 0),
    "postman": ("sender thread", 0),
    "brief": ("interruptible wait", 0),
    "patience": ("deadline", 0),
    "kept": ("slab cache", 1),
    "full": ("allocation retry", 0),
    "hoard": ("retain", 0),
    "hoards": ("retain", 0),
    "broken": ("failed CUDA context", 2),
    "loan": ("suballocation", 1),
    "borrow": ("CUDA IPC import", 0),
    "distant": ("unmapped", 0),
    "crew": ("workers", 0),
    "plane": ("shared task queue", 0),
    "parcel": ("encoded message", 0),
    "held": ("in-flight payload", 0),
    "ahead": ("prefetch", 4),
    "leaving": ("write-back", 2),
    "given": ("array arguments", 0),
    "alone": ("GPU fast path", 0),
    "again": ("rebuilt tensor", 1),
    "foreign": ("external array", 0),
    "outcomes": ("answer decoding", 0),
    "bury": ("reap", 0),
    "told": ("described", 0),
}


def nouns_of(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Each word by which something is called in a file, and the name in which it stands."""
    stem = name.rpartition("/")[2].rpartition(".")[0]
    yield from ((word, name) for word in stem.split("_"))
    if name.endswith(".py"):
        for found in re.findall(r"^class (\w+)", text, re.MULTILINE):
            yield from ((word.lower(), found) for word in re.findall(r"[A-Z][a-z]+", found))
    else:
        for match in re.finditer(r"\b(?:cw[bd]?|CW[BD]?)_([A-Za-z]+)\w*", tidy_recursion.code_of(text)):  # fmt: skip
            yield match[1].lower(), match[0]


def private_words(texts: Mapping[str, str]) -> Iterator[str]:
    """Of all files by their names: private words in more names than there were."""
    found: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        if name.startswith(FOLDERS) and name.endswith((".c", ".h", ".py")):
            for word, where in nouns_of(name, text):
                if word in WORDS:
                    found.setdefault(word, {}).setdefault(where, name)
    for word, names in sorted(found.items()):
        instead, most = WORDS[word]
        if len(names) > most:
            told = ", ".join(f"{where} ({name})" for where, name in sorted(names.items()))
            yield f"the word {word!r} stands in {len(names)} names, more than {most}; write {instead}: {told}"
