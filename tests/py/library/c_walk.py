"""Calls every function of cableway.h with wrong arguments: NULL for each pointer in turn and for all, numbers at their
ends. It prints `begin N CALL` before each call and `end right` or `end wrong` after it, so that whoever reads it knows
which call the process did not survive.

`python c_walk.py FIRST` begins with call number FIRST.
"""

from __future__ import annotations

import errno
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cableway._core.library import ffi, lib

HEADER = Path(__file__).resolve().parents[3] / "ipc" / "cableway.h"
Parameters = list[tuple[str, str]]

# Parameters that may be NULL, by the header's word.
OPTIONAL = {
    ("cw_connect", "address"),
    ("cw_connect", "name_space"),
    ("cw_connect_within", "address"),
    ("cw_connect_within", "name_space"),
    ("cw_array_put", "layout"),
    ("cw_array_put_at", "layout"),
    ("cw_dtype_table", "count"),
    ("cw_names", "prefix"),
    ("cw_names_stat", "prefix"),
    ("cw_names_stat", "context"),
    ("cw_work_finish", "work"),
    ("cw_tree_put", "out"),
    ("cw_tree_put", "leaves"),
    ("cw_tree_put", "meta"),
    ("cw_mount_unpark", "tree"),
    ("cw_group_join", "options"),
    ("cw_group_broken", "out"),
}
# Memory that may be NULL if size_bytes is 0.
MEMORY = {
    ("cw_array_write", "source"),
    ("cw_array_read", "destination"),
    ("cw_array_copy_in", "source"),
    ("cw_array_copy_out", "target"),
    ("cw_queue_put", "data"),
    ("cw_task_write", "data"),
    ("cw_group_send", "data"),
    ("cw_group_send_now", "data"),
    ("cw_group_exchange", "data"),
}
# What may be called with NULL alone, which is nothing to be ended.
ENDS = {"cw_client_unref", "cw_free", "cw_array_close", "cw_queue_close", "cw_item_deinit"}
ENDS |= {"cw_group_close", "cw_group_message_end", "cw_group_parts_free"}
ENDS |= {"cw_pool_delete", "cw_worker_close", "cw_work_end", "cw_tree_close", "cw_mount_close"}
WAITS = {"timeout_ns", "spin_ns"}  # these would last
STRUCTS = {"cw_group_memory"}  # given as they are


def prototypes() -> Iterator[tuple[str, str, Parameters]]:
    """(result, name, [(type, parameter)]) of each function in the header."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    pattern = r"^((?:const )?(?:unsigned )?\w+ \**)(cw_\w+)\(([^;{]*)\);"
    for result, name, inside in re.findall(pattern, text, flags=re.M):
        parameters = []
        for part in [] if inside == "void" else inside.split(","):
            kind, parameter, room = re.fullmatch(
                r"\s*(.*?[ *])(\w+)(\[\d+\])?\s*", part, flags=re.S
            ).groups()
            parameters.append((" ".join(kind.split()) + (" *" if room else ""), parameter))
        yield result.strip(), name, parameters


class World:
    """Something right for every parameter."""

    def __init__(self) -> None:
        """Connects, and makes one of each."""
        self.kept: list[Any] = []
        self.client = self.made("cw_client *", lib.cw_connect, ffi.NULL, ffi.NULL, 0)
        shape = self.keep(ffi.new("int64_t[1]", [10]))
        self.layout = self.keep(ffi.new("cw_layout *"))
        self.layout.ndim, self.layout.itemsize, self.layout.shape = 1, 8, shape
        self.layout.dtype = self.keep(ffi.new("char[]", b"<f8"))
        new = (lib.cw_array_new, self.client, b"cpu", self.layout, 1)
        self.array = self.made("cw_array *", *new)
        self.other = self.made("cw_array *", *new)
        memory = self.made("cw_array *", lib.cw_queue_new, self.client, 10, 0)
        self.queue = self.made("cw_queue *", lib.cw_queue_open, memory)
        nbytes = lib.cw_pool_bytes(2, 4, 1)
        self.room = self.keep(mmap.mmap(-1, nbytes))
        self.address = ffi.cast("void *", ffi.from_buffer(self.room))
        self.pool = self.made("cw_pool *", lib.cw_pool_new, self.address, nbytes, 2, 4, 1)
        open_ = (lib.cw_worker_open, self.address, nbytes, 2, 4, 1, 0, 0, 0)
        self.worker = self.made("cw_worker *", *open_)
        options = self.keep(ffi.new("cw_group_options *"))
        options.timeout_ns = 1_000_000
        self.group = self.made("cw_group *", lib.cw_group_join, self.client, b"walk", 1, 0, options)
        self.memory = self.keep(ffi.new("cw_group_memory *"))
        self.memory.data = self.address
        self.item = self.keep(ffi.new("cw_item *"))
        self.task = self.keep(ffi.new("cw_task *"))
        assert lib.cw_pool_reserve(self.pool, self.task) == 0
        self.handle = self.keep(ffi.new("cw_handle *"))
        assert lib.cw_array_export(self.array, 0, self.handle) == 0
        use = self.keep(ffi.new("cw_use *"))
        use.array = self.array
        pair = self.keep(ffi.new("cw_pair *"))
        pair.target, pair.source = self.array, self.other
        self.uses, self.pairs = use, pair
        none = (ffi.NULL, 0, ffi.NULL, 0, 4, (1 << 64) - 1)
        self.tree = self.made("cw_tree *", lib.cw_tree_put, self.client, b"walk/t", *none)
        self.mount = self.made("cw_mount *", lib.cw_mount_open, self.tree, self.client)

    def keep(self, thing: Any) -> Any:
        """Keeps what C points to."""
        self.kept.append(thing)
        return thing

    def made(self, kind: str, call: Any, *arguments: Any) -> Any:
        """What call writes to its last parameter."""
        place = ffi.new(f"{kind} *")
        code = call(*arguments, place)
        assert code == 0, (call, code, ffi.string(lib.cw_error()))
        return place[0]

    def right(self, kind: str, name: str) -> Any:
        """An argument with which nothing is wrong, and that harms nothing."""
        plain = kind.replace("const ", "")
        if name == "timeout_ns" or plain in ("uint64_t", "int64_t", "uint32_t", "int32_t", "int"):
            return {"count": 1, "groups": 1, "workers": 2, "cells": 4}.get(name, 0)
        if plain == "char *":
            return {"device": b"cpu"}.get(name, b"" if name == "prefix" else b"walk/x")
        if plain == "cw_array *" and name == "source":
            return self.other
        given = {
            "cw_client *": self.client,
            "cw_array *": self.array,
            "cw_queue *": self.queue,
            "cw_pool *": self.pool,
            "cw_worker *": self.worker,
            "cw_work *": ffi.NULL,
            "cw_layout *": self.layout,
            "cw_handle *": self.handle,
            "cw_item *": self.item,
            "cw_task *": self.task,
            "cw_use *": self.uses,
            "cw_pair *": self.pairs,
            "cw_tree *": self.tree,
            "cw_mount *": self.mount,
            "cw_group *": self.group,
            "cw_group_memory": self.memory[0],
            "cw_group_part *": ffi.NULL,
            "cw_reduction": 1,
        }
        if plain in given and name != "out":
            return given[plain]
        if plain == "cw_on_name *":
            return self.keep(ffi.callback("cw_on_name", lambda *_: 0))
        if plain == "void *":
            return ffi.NULL if name == "stream" else self.address
        return ffi.cast(plain, self.keep(ffi.new("char[8192]")))


def may_be_null(function: str, kind: str, name: str) -> bool:
    """Does the header allow NULL there?"""
    pair = (function, name)
    return pair in OPTIONAL | MEMORY or function in ENDS or (kind, name) == ("void *", "stream")


def wrongs(name: str, parameters: Parameters) -> Iterator[tuple[dict[int, Any], bool]]:
    """What is wrong, by position, and must it be told?"""
    pointers = [i for i, (kind, _) in enumerate(parameters) if "*" in kind]
    sizes = [i for i, (_, parameter) in enumerate(parameters) if parameter == "size_bytes"]
    needed = [i for i in pointers if not may_be_null(name, *parameters[i])]
    for i in pointers:
        yield {i: ffi.NULL}, i in needed
        if (name, parameters[i][1]) in MEMORY:
            yield {i: ffi.NULL, sizes[0]: 8}, True
    if len(pointers) > 1:
        yield dict.fromkeys(pointers, ffi.NULL), bool(needed)
    for i, (kind, parameter) in enumerate(parameters):
        if "*" in kind or parameter in WAITS or kind in STRUCTS:
            continue
        bits = 8 * ffi.sizeof(kind)
        signed = kind.startswith("int")
        for end in (2 ** (bits - 1) - 1, -(2 ** (bits - 1))) if signed else (2**bits - 1,):
            yield (
                {i: end},
                name.startswith("cw_pool_") and parameter in ("worker", "group", "cell", "slot"),
            )


def as_told(result: str, got: Any) -> bool:
    """Is that how a function with this result tells of a wrong argument?"""
    if result == "void":
        return True
    if result == "int":
        return bool(got == -errno.EINVAL)
    return bool(got == (ffi.NULL if "*" in result else 0))


def walk(first: int) -> None:
    """Calls them, from number first on."""
    world = World()
    number = -1
    for result, name, parameters in prototypes():
        for wrong, must_tell in wrongs(name, parameters):
            number += 1
            if number < first:
                continue
            said = ", ".join(f"{parameters[i][1]}={wrong[i]}" for i in sorted(wrong))
            print(f"begin {number} {name}({said})", flush=True)
            given = [
                wrong[i] if i in wrong else world.right(*pair) for i, pair in enumerate(parameters)
            ]
            got = getattr(lib, name)(*given)
            right = not must_tell or as_told(result, got)
            print(f"end {'right' if right else 'wrong'} {got}", flush=True)


if __name__ == "__main__":
    walk(int(sys.argv[1]))
