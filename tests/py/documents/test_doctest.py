"""Every example in a docstring of the package runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import cableway as cw

MODULES = ["cableway"] + [
    module.name
    for module in pkgutil.walk_packages(cw.__path__, "cableway.")
    if module.name not in ("cableway._cableway", "cableway._dlpack")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    if name in ("cableway.joblib", "cableway.cupy", "cableway.numba", "cableway.torch"):
        pytest.importorskip(name.removeprefix("cableway."))
    if name in (
        "cableway.vllm",
        "cableway.sglang",
    ):  # these need more of their packages than the folder
        pytest.importorskip(name, exc_type=ImportError)
    if name.startswith(("cableway.dask", "cableway._dask")):
        pytest.importorskip("distributed")
    if name.startswith(("cableway.ray", "cableway._ray")):
        pytest.importorskip("ray")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed


def test_every_public_name_has_an_example():
    for name in (
        "asarray",
        "connect",
        "constant",
        "devices",
        "empty",
        "full",
        "get",
        "names",
        "put",
        "remove",
        "status",
        "wait",
        "zeros",
    ):
        assert ">>>" in getattr(cw, name).__doc__, name
