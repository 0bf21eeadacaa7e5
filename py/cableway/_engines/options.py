"""What a user of an engine says about cableway: `model_loader_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Options", "options"]

_EXAMPLE = '{"name": "llm"}'


class Options(NamedTuple):
    """Where an engine takes its weights from, and what it shares.

    Attributes:
        name: of the tree of weights; the names of processed states begin with it.
        files: whether the weights are the model's files, loaded once under the name; False: a tree that was published as the name.
        keep: whether the names outlive the last process that uses them.
        share: "state": engines on one GPU share the memory of processed weights; "weights": each has its own.
    """

    name: str
    files: bool = True
    keep: bool = False
    share: str = "state"


def options(given: Any) -> Options:
    """The options in a `model_loader_extra_config`.

    Raises:
        ValueError: no name, an unknown key, or a bad value; the text says which are known.
        TypeError: it is no dict.
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise TypeError(f"model_loader_extra_config is a dict, not {type(given).__name__}")
    unknown = sorted(set(given) - set(Options._fields))
    if unknown:
        raise ValueError(
            f"model_loader_extra_config has {', '.join(map(repr, unknown))}; "
            f'load format "cableway" knows {", ".join(map(repr, Options._fields))}'
        )
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(
            f'load format "cableway" needs the name of a tree: model_loader_extra_config={_EXAMPLE}'
        )
    found = Options(**given)
    for key in ("files", "keep"):
        if not isinstance(getattr(found, key), bool):
            raise ValueError(f"{key} is true or false, not {getattr(found, key)!r}")
    if found.share not in ("state", "weights"):
        raise ValueError(f'share is "state" or "weights", not {found.share!r}')
    return found
