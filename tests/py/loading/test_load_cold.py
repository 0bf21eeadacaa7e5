"""Files that are not in the page cache: read past it, whole and right, and mixed with what is in there; and small ones, by the caller."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import cableway as cw
import cableway.safetensors as ours

MIB = 1 << 20
PAGE = mmap.PAGESIZE


def cached(path: Path) -> float:
    """The share of a file's pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapping:
        at = np.frombuffer(mapping, "u1")
        pages = (ctypes.c_ubyte * (-(-size // PAGE)))()
        status = libc.mincore(ctypes.c_void_p(at.ctypes.data), ctypes.c_size_t(size), pages)
        del at
    assert status == 0
    return sum(page & 1 for page in pages) / len(pages)


def make_cold(path: Path, begin: int = 0, length: int = 0) -> None:
    """Takes it out of the page cache, or that part of it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), begin, length, os.POSIX_FADV_DONTNEED)


def direct(path: Path) -> bool:
    """Whether this file can be read past the cache, and be taken out of it."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    make_cold(path)
    return cached(path) == 0


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    sizes = [7, 9 * MIB + 5, 0, 1, 4096, 16385, 4 * MIB - 3, 3 * MIB]
    return {f"t{n}": random.integers(0, 255, size, "u1") for n, size in enumerate(sizes)}


@pytest.fixture
def file(tmp_path: Path, values: dict[str, np.ndarray]) -> Path:
    path = tmp_path / "m.safetensors"
    save_file(values, path)
    os.utime(path, (1, 1))
    if not direct(path):
        pytest.skip("this file system reads nothing past the page cache")
    return path


def check(path: Path, values: dict[str, np.ndarray]) -> None:
    with cw.load("m", path) as tree:
        assert tree.verify() == len(values)
        for name, wanted in values.items():
            assert tree[name].numpy().tobytes() == wanted.tobytes(), name
    cw.remove("m")


def test_a_cold_file_is_read_past_the_cache(file: Path, values: dict[str, np.ndarray]) -> None:
    make_cold(file)
    check(file, values)
    assert cached(file) < 0.5  # its header, and what the kernel guessed of it
    warm = file.read_bytes()
    assert len(warm) == file.stat().st_size and cached(file) == 1
    check(file, values)


def test_a_file_that_is_cached_in_part(file: Path, values: dict[str, np.ndarray]) -> None:
    for begin, length in ((0, 5 * MIB), (6 * MIB, 0), (2 * MIB, 4 * MIB)):
        file.read_bytes()
        make_cold(file, begin, length)
        check(file, values)


def test_what_was_written_and_is_not_on_the_disk_yet_is_read(
    file: Path, values: dict[str, np.ndarray]
) -> None:
    make_cold(file)
    size = sum(one.nbytes for one in values.values())
    with file.open("r+b") as out:  # a page in the midst of what is cold
        out.seek(-size, os.SEEK_END)
        out.seek(2 * MIB, os.SEEK_CUR)
        out.write(b"x" * 5000)
    os.utime(file, (2, 2))
    with cw.load("m", file) as tree:
        whole = b"".join(tree[name].numpy().tobytes() for name in sorted_by_place(file))
    assert whole == file.read_bytes()[-size:] and b"x" * 5000 in whole


def sorted_by_place(path: Path) -> list[str]:
    with ours.safe_open(path, "np") as opened:
        return opened.offset_keys()


def test_a_cold_file_that_was_cut_off_meanwhile_is_refused(file: Path) -> None:
    make_cold(file)
    with ours.safe_open(file, "np") as opened:
        os.truncate(file, file.stat().st_size - 5 * MIB)
        with pytest.raises(cw.Error, match="written to|cut off"):
            for name in opened.offset_keys():
                opened.get_tensor(name)


def test_small_tensors_are_read_without_a_thread(file: Path) -> None:
    with ours.safe_open(file, "np") as opened:
        tasks = set(os.listdir("/proc/self/task"))
        for name in ("t0", "t3", "t4", "t5"):
            opened.get_tensor(name)
        assert set(os.listdir("/proc/self/task")) <= tasks
