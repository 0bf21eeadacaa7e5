"""The rule of tests/tidy.py for commits: a subject that can be read in a list."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

SUBJECT_MAX = 72
# Commits up to this moment (the last one is 191597c) are as they are: a subject is not changed once others have it.
SINCE = 1795527897  # 2026-11-24 13:44:57 UTC


def of(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Hash, moment and subject of each commit that is here; of none where there is no repository, as in a copy."""
    listed = subprocess.run(
        ["git", "-C", str(folder), "log", "--format=%h%x00%ct%x00%s", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in listed.stdout.splitlines():
        commit, moment, subject = line.split("\0", 2)
        yield commit, int(moment), subject


def with_long_subjects(commits: Iterator[tuple[str, int, str]]) -> Iterator[str]:
    """Of new commits: those whose subject is longer than a list of commits shows."""
    for commit, moment, subject in commits:
        if moment > SINCE and len(subject) > SUBJECT_MAX:
            yield f"commit {commit}: a subject of {len(subject)} characters, more than {SUBJECT_MAX}: {subject}"
