"""Tests on GPUs: programs of their own, on the test double of the driver or, with CABLEWAY_TEST_GPU=1, on real GPUs.

No test initialises CUDA in pytest's own process: other tests fork it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

REAL = os.environ.get("CABLEWAY_TEST_GPU") == "1"
BUILD = Path(os.environ.get("CABLEWAY_BUILD", "build")).resolve()
DOUBLE = BUILD / "tests/fakecuda/libcuda-double.so"
COMMAND = BUILD / "cableway"


def require() -> None:
    """Skips a module where neither is there."""
    if not REAL and not DOUBLE.exists():
        pytest.skip(f"no GPU asked for, and no test double at {DOUBLE}", allow_module_level=True)


def real_gpus() -> int:
    """GPUs that can be used for tests; 0 on the double."""
    if not REAL:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part])
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def gpus_here() -> int:
    """One or two: so many GPUs tests may use."""
    return min(real_gpus(), 2) if REAL else 2


def double(folder: Path, **settings: object) -> dict[str, str]:
    """What a process needs to use the test double, whose card lies in folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return {
        "CABLEWAY_CUDA_DRIVER": str(DOUBLE),
        "CABLEWAY_FAKECUDA_DIR": str(folder),
        **{f"CABLEWAY_FAKECUDA_{name.upper()}": str(value) for name, value in settings.items()},
    }


@contextlib.contextmanager
def gpus(folder: Path, **settings: object) -> Iterator[None]:
    """Two GPUs of the double for this process's children; on real ones nothing is to be done."""
    card = folder / "card"
    extra = {} if REAL else double(card, **{"devices": 2, **settings})
    os.environ.update(extra)
    yield
    for name in extra:
        del os.environ[name]
    if card.exists():
        shutil.rmtree(card)


def for_module(**settings: object) -> object:
    """The fixture `gpus` of a test module: its broker and all its programs see the same GPUs."""

    @pytest.fixture(scope="module", autouse=True, name="gpus")
    def seen(broker_folder: Path) -> Iterator[None]:
        with gpus(broker_folder, **settings):
            yield

    return seen


# What `run.sh BUILD two` looks for: tests that one GPU is not enough for.
second_gpu = pytest.mark.skipif(REAL and real_gpus() < 2, reason="no second GPU")
