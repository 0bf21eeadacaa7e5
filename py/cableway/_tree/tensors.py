"""All leaves of a tree as tensors of PyTorch. Thousands are made, so the loop over them is in C (csrc/dlpack/leaves.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cableway import _dlpack, create
from cableway._array import dlpack
from cableway._core import dtypes, words
from cableway._core.leases import Lease, usable
from cableway._core.library import ffi
from cableway._cuda import interop

if TYPE_CHECKING:
    from cableway.tree import Tree

__all__ = ["tensors_of"]


def tensors_of(tree: Tree) -> tuple[list[str], list[Any]]:
    """The path of each leaf, and a tensor for it, without a copy; what is tied is one tensor.

    Raises:
        BufferError: DLPack cannot tell a leaf's dtype or strides.
    """
    import torch
    from torch.utils.dlpack import from_dlpack

    # With a capsule the public function does nothing but call this one.
    take = getattr(getattr(torch, "_C", None), "_from_dlpack", from_dlpack)
    now = tree._now()  # keeps what its info points to
    info = now.info
    places = [_place(tree._part(number)) for number in range(info.parts)]
    index = int(ffi.cast("uintptr_t", info.index))
    paths, tensors, special = _dlpack.leaves(index, info.index_bytes, _form, places, take)
    for number, alias in special:
        tensors[number] = (
            tensors[alias - 1] if alias else _special(tree, number, tensors[number], take)
        )
    return paths, tensors


def _form(text: str) -> tuple[int, int, int, int, bool]:
    """Of a dtype the bytes of an element, DLPack's code, bits and lanes, and whether PyTorch takes it by its bytes alone."""
    is_packed = text in words.PACKED
    row = words.of_text("|u1" if is_packed else text)
    if row is None:
        raise dlpack.unknown(dtypes.decode(text))
    return row.size_bytes, row.code, row.bits, row.lanes, is_packed


def _place(lease: Lease) -> tuple[object, int, tuple[int, int]]:
    """A part's lease, the address of its lowest byte, and its device as DLPack has it."""
    usable(lease)
    return lease, lease.address, dlpack.device_of(lease)


def _special(tree: Tree, number: int, tensor: Any, take: Any) -> Any:
    """What stands for a leaf without bytes, or for one whose dtype is packed, of which tensor has the bytes."""
    leaf, _keeps = tree._leaf_at(number)
    layout = tree._layout(leaf)
    is_packed = words.is_packed(layout.dtype)
    if not leaf.size_bytes:
        kind = words.raw(layout.dtype) if is_packed else layout.dtype
        lease = create.empty(layout.shape, layout.dtype)._open_lease()
        form = dlpack.form(kind, layout.shape, layout.strides)
        tensor = take(dlpack.on(lease, lease.address + layout.origin, dlpack.HOST, form))
    return interop.packed(tensor, layout.dtype) if is_packed else tensor
