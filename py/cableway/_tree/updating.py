"""What the publisher of a tree with `seal=False` does: it writes leaves in place, in GPU memory.

Invariants
  U1  All is checked, and lies on the leaves' GPUs, before anything is written: what is refused has changed nothing.
  U2  All leaves of one call are written in one section (ipc/order), so that a reader in a section sees all of it or nothing, of each
      part; between its begin and its end others' sections wait.

The publisher owns the writable leases; readers' mappings are read-only. Who dies:
  the publisher, before the copies are given to the GPU   readers see the old values
  the publisher, until the GPU is done                    readers get `ProducerDied`, from then on: parts of the leaves may be new
  the publisher, later                                    nothing: the memory belongs to no process
  a reader                                                what it had begun no longer counts; the publisher goes on
  the broker                                              the call raises `BrokerLost`, and has changed nothing or all

Host memory has no sections: nobody could tell a reader that half of it is new. So leaves in host memory are refused.
"""

from __future__ import annotations

from typing import Any

from cableway import array as arrays
from cableway._array import copies
from cableway._core import words
from cableway._core.garbage import uncollected
from cableway._core.library import lib
from cableway._tree.leaves import flatten
from cableway._tree.publish import Place, Source, aliases_of, sources_of
from cableway._tree.swapping import Swapping
from cableway.array import Array

__all__ = ["Updating"]


class Updating(Swapping):
    """The part of `Tree` for trees that were put with `seal=False`."""

    __slots__ = ()

    _writes: dict[str, Place] | None  # where each leaf can be written; None: it cannot

    def update(self, tensors: Any, *, stream: Any = None) -> None:
        """Writes new values into leaves on GPUs, in place: addresses and `version` stay, and no memory is taken for a second version.

        Only the process that put the tree with `seal=False` can call it, on the Tree that `put` returned. Readers keep order by
        sections: `with t["w"].reading(stream)` and `cw.work(reads=...)` wait for an update that was begun, and an update waits for
        the sections under way. A reader without a section may see some old and some new values. Values that are not in GPU
        memory of cableway are first copied there, which takes that much memory for a moment.

        Args:
            tensors: new values, as `put` takes them: a dict by paths, nested as you like, or a module. Leaves that it leaves out
                stay as they are.
            stream: the stream of the leaves' GPU that writes; the call returns when it has the work. None: the call returns
                when the new values are there.

        Raises:
            KeyError: the tree has no such leaf.
            ValueError: the tree was got, or put with seal=True; a shape or a dtype differs; a leaf lies in host memory, or was
                published again by somebody with `copy=False`; tied leaves get different values.
            ProducerDied: a value's writer died before its work was complete.
            DeviceError: the driver failed. If it failed while it wrote, readers get `ProducerDied` from now on: put a new version.

            Nothing has changed, except where the driver failed while it wrote.
        """
        writes = self._writes
        self._pointer()
        if writes is None:
            raise ValueError(
                "only the process that put a tree with seal=False can update it, by the Tree that put returned; "
                "to change this one, put a new version"
            )
        with uncollected():
            sources = sources_of(flatten(tensors), None, True, ())
            wanted = _wanted(self, writes, sources, aliases_of(sources))
        pairs = [(_target(place), _there(place, source)) for place, source in wanted]
        if pairs:
            copies.copy(pairs, stream=stream)


def _wanted(
    tree: Any, writes: dict[str, Place], sources: list[Source], aliases: list[int]
) -> list[tuple[Place, Source]]:
    """Which value goes where, checked; what is tied once."""
    wanted = []
    first: dict[tuple[int, int], int] = {}  # number of the value, from 1, by the place
    for number, (source, alias) in enumerate(zip(sources, aliases, strict=True), 1):
        path, layout = source.leaf.path, source.layout
        place = writes.get(path)
        leaf = tree._layout(tree._leaf(path)[0]) if place is None else place.layout
        if layout.shape != leaf.shape or not words.same(layout.dtype, leaf.dtype):
            raise ValueError(
                f'"{path}" has the shape {leaf.shape} and the dtype {words.name(leaf.dtype)}, not {layout.shape} and '
                f"{words.name(layout.dtype)}: an update changes neither; put a new version"
            )
        if place is None:  # it has no bytes
            continue
        _check_place(path, place)
        where, value = (id(place.lease), place.low), alias or number
        known = first.get(where)
        if known is None:
            first[where] = value
            wanted.append((place, source))
        elif known != value:
            raise ValueError(
                f'"{path}" is tied to "{sources[known - 1].leaf.path}", and both are given, with different values: leave one out'
            )
    return wanted


def _check_place(path: str, place: Place) -> None:
    if place.lease.gpu < 0:
        raise ValueError(
            f'"{path}" lies in host memory, where no section tells readers that it changes: put a new version, '
            "or put the tree on a GPU (device=)"
        )
    if lib.cw_array_sealed(place.lease.pointer):
        raise ValueError(
            f'"{path}" lies in memory that was published a second time and does not change any more: put a new version'
        )


def _target(place: Place) -> Array:
    return arrays.make(place.lease, place.layout, place.low + place.layout.origin)


def _there(place: Place, source: Source) -> Array:
    """The value on the leaf's GPU, laid out as the leaf."""
    value = source.values
    if isinstance(value, Array) and value._on_gpu() and value._layout_now().same(place.layout):
        return value
    made = arrays.new(place.layout, device=_target(place).device)
    copies.assign(made, value)
    return made
