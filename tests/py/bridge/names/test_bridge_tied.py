"""A name that ends with its process ends on other nodes, too, whether the process ends by itself or is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from waiting import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

MAKER = """
import sys, numpy as np, cableway as cw
cw.put("open/tied", np.arange(100_000), tied=True)
print("there", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "open/*", "--write", "in/*") as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, 0])
def test_replicas_of_a_tied_name_go_with_its_maker(two: tuple[Node, Node], number: int) -> None:
    a, b = two
    with b.here(), subprocess.Popen([sys.executable, "-c", MAKER], env=a.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as maker:  # fmt: skip
        assert maker.stdin is not None and maker.stdout is not None
        assert maker.stdout.readline() == "there\n"
        x = cw.get("//a/open/tied", timeout=60)
        assert cw.get("//a/open/tied").tolist() == list(range(100_000))
        if number:
            maker.send_signal(number)
        else:
            maker.stdin.close()
        maker.wait()

        def gone() -> bool:
            try:
                cw.get("//a/open/tied").close()
            except cw.NameNotFound:
                return True
            return False

        assert eventually(gone)
        assert cw.names("//a/open/") == []
        assert x.numpy().sum() == 4999950000  # who has it keeps it
        x.close()
    with b.here(), a.here():
        cw.put("open/tied", [7])
    with b.here():
        assert cw.get("//a/open/tied", timeout=60).tolist() == [7]
    a.command("rm", "open/tied")


def test_a_name_of_another_node_cannot_be_tied_here(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here() as connection:
        assert connection.node == "b"
        for what in ([1], {"a": np.ones(3)}):
            with pytest.raises(ValueError, match="another node"):
                cw.put("//a/in/x", what, tied=True)
            with pytest.raises(
                (ValueError, cw.RemoteError), match='another node|no peer "unknown"'
            ):
                cw.put("//unknown/x", what, tied=True)
            cw.put("//b/own", what, tied=True)  # on b that is its own name
            assert cw.names("own") == ["own"]
            cw.remove("own")
    with a.here() as connection:
        assert connection.node == "a" and cw.names("in/") == []
