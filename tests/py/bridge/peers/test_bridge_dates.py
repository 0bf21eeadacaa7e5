"""A certificate that ends: the log and `cableway doctor` say so before nobody lets the node in any more."""

from __future__ import annotations

from pathlib import Path

import bridge_support
import pytest
from authority import Authority, openssl_lacking
from bridge_support import Node
from conftest import eventually

pytestmark = [
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
    pytest.mark.skipif(bool(openssl_lacking()), reason=openssl_lacking()),
]


def warnings(node: Node) -> list[str]:
    """What the log says of certificates that end."""
    return [line for line in node.said().splitlines() if "node.crt end" in line]


def doctor(node: Node) -> str:
    """What `cableway doctor` says of the key."""
    told = node.command("doctor", check=False).stdout
    return next(line for line in told.splitlines() if "bridge key" in line)


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [(-300, 19.5, "node.crt ends in 19 days"), (-1, 0.23, "node.crt ends in 5 hours"),
     (-2, -0.1, "node.crt ended"), (-300, 40, ""), (-1, 1, "")],
)  # fmt: skip
def test_a_certificate_that_ends_soon_is_told_at_the_start(
    tmp_path: Path, begins: float, ends: float, said: str
) -> None:
    with bridge_support.net("a") as made:
        (a,) = made.nodes.values()
        authority = Authority(tmp_path)
        authority.issue(a.keys, "URI:cableway://a", begins_days=begins, ends_days=ends)
        a.start()
        assert eventually(lambda: len(warnings(a)) == bool(said)) and said in a.said(), a.said()
        told = doctor(a)
        assert (said in told) and ("a new certificate" in a.said()) == bool(said)


def test_a_certificate_that_is_renewed_is_told_no_more(tmp_path: Path) -> None:
    with bridge_support.net("a") as made:
        (a,) = made.nodes.values()
        authority = Authority(tmp_path)
        authority.issue(a.keys, "URI:cableway://a", begins_days=-300, ends_days=100)
        a.start()
        assert not warnings(a)
        authority.issue(a.keys, "URI:cableway://a", begins_days=-300, ends_days=9.5)
        assert eventually(lambda: len(warnings(a)) == 1), a.said()
        assert "ends in 9 days" in warnings(a)[0] and "ends in 9 days" in doctor(a)
        authority.issue(a.keys, "URI:cableway://a", begins_days=-1, ends_days=100)
        assert eventually(lambda: a.said().count("loaded again") == 2), a.said()
        assert len(warnings(a)) == 1 and "ends in" not in doctor(a)
