"""Nodes in network namespaces: tests that run beside each other do not meet."""

from __future__ import annotations

import socket

import bridge_support
import pytest
from conftest import eventually

WHY_NOT = bridge_support.lacking() or bridge_support.namespaces_lacking()


def address_towards(node: bridge_support.Node) -> str:
    """This process's address on a connection to a node; "" as long as its bridge does not listen."""
    try:
        with socket.create_connection((node.host, node.port), 10) as connection:
            return str(connection.getsockname()[0])
    except ConnectionRefusedError:
        return ""


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_this_process_reaches_the_nodes_of_two_nets_at_once() -> None:
    with (
        bridge_support.net("a", namespaces=True) as one,
        bridge_support.net("a", namespaces=True) as other,
    ):
        hosts = {net.nodes["a"].host for net in (one, other)}
        assert len(hosts) == 2
        for net in (one, other):
            net.start()
            assert eventually(lambda net=net: address_towards(net.nodes["a"]) == net.outside)
