"""As many peers as may be: each is found by its name and by its key, and one more is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
PEERS_MAX = 4096  # CWB_PEERS_MAX


def key(number: int) -> str:
    """A fingerprint that no key has."""
    return f"sha256:{number:064x}"


def write(node: Node, sections: list[str]) -> None:
    """Its file of peers, as a whole."""
    fresh = Path(node.keys / "peers.fresh")
    fresh.write_text("\n".join(sections))
    fresh.chmod(0o600)
    fresh.rename(node.keys / "peers")


@pytest.fixture
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that do not know each other yet."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        yield a, b


def there(name: str) -> bool:
    """Whether a name can be had."""
    try:
        cw.get(name)
    except (cw.NameNotFound, cw.RemoteError):
        return False
    return True


def section(name: str, key: str, *lines: str) -> str:
    """What the file says of one peer."""
    return "\n".join([f"[{name}]", f"key = {key}", *lines, ""])


def test_as_many_as_may_be_are_each_found(two: tuple[Node, Node]) -> None:
    a, b = two
    place = f"address = {b.host}:{b.port}"
    strangers = [section(f"n{number:04}", key(number)) for number in range(PEERS_MAX - 1)]
    write(a, [*strangers[:2000], section("b", b.print, place), *strangers[2000:]])
    write(b, [*strangers[:3000], section("a", a.print, "read = *"), *strangers[3000:]])
    a.start()
    b.start()
    b.put("x", [7])
    with a.here():
        assert cw.get("//b/x").numpy().tolist() == [7]  # found here by name, there by key
        for number in (0, 1999, 2000, PEERS_MAX - 2):
            with pytest.raises(cw.RemoteError, match=f"n{number:04} is not connected, and has no"):
                cw.get(f"//n{number:04}/x")
        for name in ("n4095", "n40", "N0001", "b2"):
            with pytest.raises(cw.RemoteError, match=f'there is no peer "{name}"'):
                cw.get(f"//{name}/x")
    told = json.loads(a.command("peers", "--json").stdout)
    assert len({peer["name"] for peer in told}) == len(told) == PEERS_MAX

    # One more than may be: the file counts as it was.
    write(a, [*strangers, section("b", b.print, place), section("more", key(PEERS_MAX))])
    assert eventually(lambda: f"the peer more is one more than the {PEERS_MAX} (CWB_PEERS_MAX)" in a.said())  # fmt: skip
    added = a.command("peers", "add", "again", "--key", key(PEERS_MAX + 1), check=False)
    assert added.returncode != 0 and f"more than the {PEERS_MAX} (CWB_PEERS_MAX)" in added.stderr
    with a.here():
        assert cw.get("//b/x").numpy().tolist() == [7]


def test_a_key_that_goes_to_another_name_is_that_ones(two: tuple[Node, Node]) -> None:
    a, b = two
    write(b, [section("a", a.print, f"address = {a.host}:{a.port}", "read = one")])
    write(a, [section("b", b.print, f"address = {b.host}:{b.port}")])
    a.start()
    b.start()
    b.put("one", [1])
    b.put("two", [2])
    with a.here():
        assert cw.get("//b/one").numpy().tolist() == [1]
        assert not there("//b/two")
        # Of two that exchange their keys in one reading each has the other's, and no other rights than its own.
        write(b, [section("a", key(1), "read = one"), section("c", a.print, "read = two")])
        assert eventually(lambda: "the file of peers was read again" in b.said()), b.said()
        assert eventually(lambda: there("//b/two")), b.said()
        assert cw.get("//b/two").numpy().tolist() == [2]
        assert not there("//b/one")
