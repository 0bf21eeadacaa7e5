"""cableway.dask between nodes: three of them, each with a broker and a bridge. Each test is a function of dask_nodes.py.

Runs in `make test-more`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess

import bridge_support
import pytest
from dask_runs import SECONDS, limit, run


def no_cuts() -> str:
    """Why connections of others cannot be cut here; "" if they can."""
    if shutil.which("ss") is None:
        return "no ss command (iproute2)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 10) as near, server.accept()[0]:
            subprocess.run(
                ["ss", "-KtnH", "sport", "=", f":{port}"], capture_output=True, check=False
            )
            try:
                near.settimeout(1)
                near.recv(1)
            except ConnectionResetError:
                return ""
            except TimeoutError:
                pass
    return "ss -K cuts no connection here: it needs CAP_NET_ADMIN, and CONFIG_INET_DIAG_DESTROY in the kernel"


NO_NAMESPACES = bridge_support.namespaces_lacking()
NO_CUTS = no_cuts()
CUTS, CUT_SECONDS = ("1000", 3600) if os.environ.get("CABLEWAY_SOAK") else ("20", SECONDS)
pytestmark = [
    limit(),
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
]


@pytest.fixture(scope="module")
def three():
    """Nodes that may fetch each other's blocks."""
    with bridge_support.net("a", "b", "c") as made:
        made.acquaint("--read", "dask/*")
        made.start()
        yield made


def told(net):
    """The environment of each node's processes."""
    found = {}
    for name, node in net.nodes.items():
        found[name] = {key: node.environment[key] for key in ("CABLEWAY_DIR", "CABLEWAY_NODE_DIR")}
        found[name]["PORT"] = str(node.port)
        if node.netns:
            found[name] |= {
                "NETNS": node.netns,
                "HOST": node.host,
                "OUTSIDE": net.outside,
            }
    return json.dumps(found)


def test_an_array_crosses_each_link_once(three, tmp_path):
    run("dask_nodes.py", "once_a_node", tmp_path, {}, told(three), "2", "32")


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_256_mib_to_12_workers_of_three_namespaces_cross_each_link_once(tmp_path):
    with bridge_support.net("a", "b", "c", namespaces=True) as made:
        made.acquaint("--read", "dask/*")
        made.start()
        run("dask_nodes.py", "once_a_node", tmp_path, {}, told(made), "4", "256")


@pytest.mark.parametrize("name", ["names_end", "one_after_another", "refused"])
def test_dask_between_nodes(three, name, tmp_path):
    try:
        run("dask_nodes.py", name, tmp_path, {}, told(three))
    finally:
        three.nodes["a"].knows(three.nodes["b"], "--read", "dask/*")


def test_bridges_are_killed_in_the_midst(three, tmp_path):
    run("dask_nodes.py", "killed", tmp_path, {}, told(three), "bridge", "8")


@limit(CUT_SECONDS)
@pytest.mark.skipif(bool(NO_CUTS), reason=NO_CUTS)
def test_links_are_cut_in_the_midst(three, tmp_path):
    print(run("dask_nodes.py", "cut", tmp_path, {}, told(three), CUTS, seconds=CUT_SECONDS))


def test_brokers_are_killed_in_the_midst(tmp_path):
    with bridge_support.net("a", "b", "c") as made:
        made.acquaint("--read", "dask/*")
        made.start()
        try:
            run("dask_nodes.py", "killed", tmp_path, {}, told(made), "broker", "6")
        finally:
            for node in made.nodes.values():  # what runs there now, its workers have started
                node.command("stop", "--yes", "--force", check=False)
                node.process.wait(60)
                node.process = None
