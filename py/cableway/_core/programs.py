"""The programs that the wheel carries. As commands they are started by `_cableway_programs`, beside the package."""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> str:
    """Where the program of that name lies inside the package."""
    return str(Path(__file__).resolve().parents[1] / "bin" / name)
