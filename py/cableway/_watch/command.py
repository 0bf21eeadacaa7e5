"""The `cableway` command that lies in the package, as `cableway.status` and the exporter run it."""

from __future__ import annotations

from cableway._core import programs

__all__ = ["FAILED", "OK", "NO_BROKER", "OUTPUT_MAX_BYTES", "TIMEOUT_SECONDS", "said", "words"]

OK, FAILED, NO_BROKER = 0, 1, 3  # exit codes
TIMEOUT_SECONDS = 10.0  # the commands ask nobody, so this is a machine that is stuck
OUTPUT_MAX_BYTES = 64 << 20  # some 200,000 arrays


def words(*arguments: str) -> list[str]:
    """The command line."""
    return [programs.path("cableway"), *arguments]


def said(errors: bytes) -> str:
    """What the command wrote to stderr, as one line without its name."""
    text = " ".join(errors.decode(errors="replace").split())
    return text.removeprefix("cableway: ")[:1000]
