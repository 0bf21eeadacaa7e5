"""The module of csrc/dlpack.c."""

def capsule(
    owner: object,
    address: int,
    device: tuple[int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    code: int,
    bits: int,
    flags: int,
    versioned: bool,
) -> object: ...
