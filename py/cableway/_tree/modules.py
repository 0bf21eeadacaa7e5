"""Modules of neural networks, known by what they can do (`named_parameters`, `named_buffers`), so that torch is not imported.

Parameters, buffers and tensors that are plain attributes are the leaves of a module. Ties, of which `state_dict()` knows nothing,
are parameters that are one object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from cableway._core.library import lib

__all__ = ["arrays_of", "drop_absent", "fill", "install", "is_module"]


def is_module(value: Any) -> bool:
    """Whether it has parameters and buffers by their names."""
    kind = type(value)
    return (
        callable(getattr(kind, "named_parameters", None))
        and callable(getattr(kind, "named_buffers", None))
        and not isinstance(value, type)
    )


def _all(walk: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a walk finds, what is tied each time that it stands somewhere."""
    try:
        return list(walk(remove_duplicate=False))
    except TypeError:  # an older PyTorch, or another library
        return list(walk())


def _submodules(module: Any) -> list[tuple[str, Any]]:
    walk = getattr(module, "named_modules", None)
    return [("", module)] if walk is None else _all(walk)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "shape") and hasattr(value, "detach")


def arrays_of(module: Any) -> Iterator[tuple[str, Any, int, int]]:
    """Path, tensor, kind and flags of each leaf of a module.

    Raises:
        ValueError: a parameter has no memory yet (it is on the device "meta").
    """
    transient = _transient(module)
    for path, value in _all(module.named_parameters):
        yield path, _there(path, value), lib.CW_LEAF_PARAMETER, 0
    for path, value in _all(module.named_buffers):
        flags = lib.CW_LEAF_TRANSIENT if path in transient else 0
        yield path, _there(path, value), lib.CW_LEAF_BUFFER, flags
    for path, value in _attributes(module):
        yield path, _there(path, value), lib.CW_LEAF_ATTRIBUTE, 0


def _attributes(module: Any) -> Iterator[tuple[str, Any]]:
    """Tensors that are plain attributes of a module and of its parts, by their paths."""
    for prefix, part in _submodules(module):
        for name, value in list(vars(part).items()):
            if _is_tensor(value):
                yield (f"{prefix}.{name}" if prefix else name), value


def _transient(module: Any) -> set[str]:
    """Paths of the buffers that are no part of the module's state."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in _submodules(module)
        for name in getattr(part, "_non_persistent_buffers_set", ())
    }


def _is_meta(value: Any) -> bool:
    return bool(getattr(value, "is_meta", False))


def _there(path: str, value: Any) -> Any:
    if _is_meta(value):
        raise ValueError(
            f'"{path}" lies on the device "meta", where there is no memory: load the module first'
        )
    return value


# ---- the other way


def fill(
    module: Any, leaves: dict[str, tuple[Any, int]], strict: bool
) -> tuple[list[str], list[str]]:
    """Gives a module the tensors of a tree: parameters as they are, buffers and attributes as copies of their own.

    Nothing of the module is changed unless all fits.

    Args:
        module: what is filled; it may lie on the device "meta".
        leaves: tensor and kind by path; what is tied is one object, or there once.
        strict: whether each parameter and buffer must be there, and nothing else. What `state_dict()` leaves out, also tensors that
            are plain attributes, need not be there, if the module has it in memory.

    Returns:
        tuple: paths of the module that the tree lacks, and of the tree that the module lacks.

    Raises:
        TypeError: it is no module.
        KeyError: strict, and some are lacking.
        ValueError: a shape or a dtype differs.
    """
    if not is_module(module):
        raise TypeError(
            f"a module of PyTorch is needed, with named_parameters() and named_buffers(), not {type(module).__name__}"
        )
    parts = dict(_submodules(module))
    own = {
        **{path: ("_parameters", value) for path, value in _all(module.named_parameters)},
        **{path: ("_buffers", value) for path, value in _all(module.named_buffers)},
    }
    attributes = {
        path for path, (_, kind) in leaves.items() if kind == lib.CW_LEAF_ATTRIBUTE
    } - set(own)
    # A checkpoint holds what is tied once: the other places of the same parameter are filled with it.
    filled = {id(value): path for path, (_, value) in own.items() if path in leaves}
    source = {
        path: path if path in leaves else filled.get(id(value)) if table == "_parameters" else None
        for path, (table, value) in own.items()
    }
    transient = _transient(module)
    missing = [
        path
        for path, found in source.items()
        if found is None and not (path in transient and not _is_meta(own[path][1]))
    ]
    unfilled = [
        path for path, value in _attributes(module) if _is_meta(value) and path not in leaves
    ]
    missing += unfilled
    unexpected = [path for path in leaves if path not in own and path not in attributes]
    if strict and (missing or unexpected):
        unmade = [path for path in missing if path in transient] + unfilled
        raise KeyError(
            f"the tree does not fit the module: it lacks {_few(missing)}, and has {_few(unexpected)} beside; "
            "strict=False fills what fits"
            + (
                f". {_few(unmade)}: no state_dict or file has such tensors (buffers with persistent=False, plain attributes), and on "
                'the device "meta" they have no values: make the module elsewhere, or put a module that has them'
                if unmade
                else ""
            )
        )
    found = {path: leaves[leaf][0] for path, leaf in source.items() if leaf is not None}
    for path, tensor in found.items():
        _check(path, own[path][1], tensor)
    made: dict[int, Any] = {}
    for path, tensor in found.items():
        table, old = own[path]
        part, name = _place(parts, path)
        if table == "_parameters":
            if id(tensor) not in made:
                made[id(tensor)] = _parameter(old, tensor)
            getattr(part, table)[name] = made[id(tensor)]
        else:
            getattr(part, table)[name] = tensor.clone()
    for path in attributes:
        part, name = _place(parts, path)
        if part is not None:
            setattr(part, name, leaves[path][0].clone())
    return missing, unexpected


def install(module: Any, leaves: dict[str, tuple[Any, int, bool]]) -> None:
    """Makes a module hold what another one held, whatever its own shapes and names are; for state that was processed.

    Parameters are shared, tied ones are one object. Buffers and attributes are copies. Nothing is removed but what stands
    under the same name.

    Args:
        module: what gets it; it may lie on the device "meta".
        leaves: tensor, kind and whether it is transient (a buffer that `state_dict` leaves out) by path.

    Raises:
        KeyError: a leaf's part is not there; nothing is changed then.
    """
    parts = dict(_submodules(module))
    unknown = [path for path in leaves if _place(parts, path)[0] is None]
    if unknown:
        raise KeyError(f"the module has no place for {_few(unknown)}")
    made: dict[int, Any] = {}
    for path, (tensor, kind, transient) in leaves.items():
        part, name = _place(parts, path)
        old = part._parameters.get(name)
        for table in (part._parameters, part._buffers, vars(part)):
            table.pop(name, None)
        if kind == lib.CW_LEAF_PARAMETER:
            if id(tensor) not in made:
                made[id(tensor)] = _parameter(old, tensor)
            part.register_parameter(name, made[id(tensor)])
        elif kind == lib.CW_LEAF_BUFFER:
            part.register_buffer(name, tensor.clone(), persistent=not transient)
        else:
            setattr(part, name, tensor.clone())


def drop_absent(module: Any, paths: set[str]) -> list[str]:
    """Removes parameters and buffers on the device "meta" that are not among these paths.

    Returns:
        list: paths of all else that lies on the device "meta": it has no memory.
    """
    left = []
    for prefix, part in _submodules(module):
        for table in (part._parameters, part._buffers, vars(part)):
            for name, value in list(table.items()):
                if not (_is_tensor(value) and _is_meta(value)):
                    continue
                path = f"{prefix}.{name}" if prefix else name
                if table is not vars(part) and path not in paths:
                    del table[name]
                else:
                    left.append(path)
    return left


def _few(paths: list[str]) -> str:
    shown = ", ".join(f'"{path}"' for path in paths[:4])
    return (shown + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")) or "nothing"


def _place(parts: dict[str, Any], path: str) -> tuple[Any, str]:
    prefix, _, name = path.rpartition(".")
    return parts.get(prefix), name


def _check(path: str, old: Any, new: Any) -> None:
    if tuple(old.shape) != tuple(new.shape):
        raise ValueError(
            f'"{path}" has the shape {tuple(old.shape)}, the tree\'s {tuple(new.shape)}'
        )
    if old.dtype != new.dtype:
        raise ValueError(
            f"\"{path}\" has the dtype {old.dtype}, the tree's {new.dtype}; give the module the tree's first"
        )


def _parameter(old: Any, tensor: Any) -> Any:
    """A parameter on shared memory: one that no optimiser changes."""
    torch = sys.modules.get("torch")
    kind = torch.nn.Parameter if torch is not None and hasattr(torch, "nn") else type(old)
    return kind(tensor, requires_grad=False)
