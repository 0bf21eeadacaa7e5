"""The module of csrc/dlpack/dlpack.c."""

from collections.abc import Callable
from typing import Any

def capsule(
    owner: object,
    address: int,
    device: tuple[int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    code: int,
    bits: int,
    lanes: int,
    flags: int,
    versioned: bool,
) -> object: ...
def look(
    capsule: object,
) -> tuple[
    int,
    tuple[int, int],
    tuple[int, ...],
    tuple[int, ...] | None,
    int,
    int,
    int,
    int,
]: ...
def leaves(
    index: int,
    nbytes: int,
    form_of: Callable[[str], tuple[int, int, int, int, bool]],
    places: list[tuple[object, int, tuple[int, int]]],
    take: object,
) -> tuple[list[str], list[Any], list[tuple[int, int]]]: ...
