"""Peers that are known by an authority: who comes in, who does not, what both sides say, and what wins over it.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import pytest
from authority import Authority, openssl_lacking
from bridge_support import Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
needs_openssl = pytest.mark.skipif(bool(openssl_lacking()), reason=openssl_lacking())

RIGHTS = ("--read", "*", "--write", "*")


def by_ca(one: Node, other: Node, dials: bool = True) -> None:
    """One knows the other by the authority."""
    place = [f"{other.host}:{other.port}"] if dials else []
    one.command("peers", "add", other.name, *place, "--ca", *RIGHTS)


def exchange(a: Node, b: Node) -> None:
    """An array goes from b to a."""
    with b.here():
        cw.put("x", [1, 2, 3])
    with a.here():
        assert cw.get("//b/x").numpy().tolist() == [1, 2, 3]


def reaches(a: Node, b: Node) -> bool:
    """Whether a can ask b; to ask is also to dial at once."""
    try:
        with a.here():
            cw.names("//b/")
    except cw.RemoteError:
        return False
    return a.sees(b) and b.sees(a)


def anew(node: Node) -> None:
    """Its bridge begins anew."""
    pid = node.bridge_pid()
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: node.bridge_pid() not in (0, pid))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node, Authority]]:
    """a dials b; each is known to the other by the authority's word alone."""
    authority = Authority(tmp_path_factory.mktemp("ca"))
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        for node in (a, b):
            authority.sign(node)
        by_ca(a, b)
        by_ca(b, a, dials=False)
        made.start()
        yield a, b, authority


def test_what_an_authority_signed_comes_in(signed: tuple[Node, Node, Authority]) -> None:
    a, b, _ = signed
    assert eventually(lambda: a.sees(b) and b.sees(a)), a.said() + b.said()
    assert a.state_of(b)["known_by"] == b.state_of(a)["known_by"] == "ca"
    exchange(a, b)


BAD = {
    "expired": ("URI:cableway://{}", {"ends_days": -0.01}, "certificate has expired", "has expired, or"),
    "not-yet-valid": ("URI:cableway://{}", {"begins_days": 0.1}, "certificate is not yet valid", "not valid yet"),
    "purpose": ("URI:cableway://{}", {"purpose": "emailProtection"}, "purpose", "purpose is another"),
    "another-node": ("URI:cableway://c", {}, "cableway://c", "does it know this node"),
    "two-nodes": ("URI:cableway://a,URI:cableway://b", {}, "no node", "does it know this node"),
    "host-name": ("DNS:{}", {}, "no node", "does it know this node"),
    "no-name": ("", {}, "no node", "does it know this node"),
    "longer-name": ("URI:cableway://{}.x", {}, "cableway://{}.x", "does it know this node"),
    "other-authority": ("URI:cableway://{}", {}, "local issuer", "not signed by the CA"),
    "self-signed": ("URI:cableway://{}", {}, "self", "not signed by the CA"),
}  # fmt: skip


@needs_openssl
@pytest.mark.parametrize(
    ("kind", "who"),
    [(kind, "dials") for kind in BAD]
    + [(kind, "listens") for kind in ("expired", "purpose", "another-node", "other-authority")],
)
def test_other_certificates_are_refused_and_both_sides_say_why(
    signed: tuple[Node, Node, Authority], tmp_path: Path, kind: str, who: str
) -> None:
    a, b, authority = signed
    bad, good = (a, b) if who == "dials" else (b, a)
    names, how, seen, told = BAD[kind]
    before = (bad.keys / "node.crt").read_bytes()
    key = (bad.keys / "node.key").read_bytes()
    said = {node: len(node.said()) for node in (a, b)}
    if kind == "self-signed":
        bad.command("keygen", "--node", bad.name, check=False)  # there is a key: nothing
        assert (bad.keys / "node.crt").read_bytes() == before
        for file in ("node.key", "node.crt"):
            (bad.keys / file).unlink()
        bad.command("keygen", "--node", bad.name)
    else:
        issuer = Authority(tmp_path / "other") if kind == "other-authority" else authority
        issuer.issue(bad.keys, names.format(bad.name), **how)
    anew(bad)

    def says(node: Node, text: str) -> bool:
        return text in node.said()[said[node] :]

    try:
        assert eventually(lambda: says(good, "certificate is refused: ")), good.said()
        assert says(good, seen.format(bad.name)), good.said()[said[good] :]
        assert eventually(lambda: says(bad, "refused this node's certificate: ")), bad.said()
        assert says(bad, told), bad.said()[said[bad] :]
        with a.here(), pytest.raises(cw.RemoteError, match="certificate"):
            cw.get("//b/x")
        assert "certificate" in a.state_of(b)["error"]
        assert eventually(lambda: not b.sees(a))  # the link that the killed bridge had, too
    finally:
        (bad.keys / "node.key").write_bytes(key)
        (bad.keys / "node.crt").write_bytes(before)
    # The certificate is read again, so that one that is renewed needs no new start.
    assert eventually(lambda: reaches(a, b)), a.said() + b.said()
    exchange(a, b)


@needs_openssl
@pytest.mark.parametrize("algorithm", ["RSA:3072", "EC:P-256"])
def test_keys_and_authority_may_be_made_by_openssl_alone(tmp_path: Path, algorithm: str) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    kind, size = algorithm.split(":")
    size = f"rsa_keygen_bits:{size}" if kind == "RSA" else f"ec_paramgen_curve:{size}"
    with bridge_support.net("a", "b") as made:
        openssl("req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", f"{tmp_path}/ca.key",
                "-out", f"{tmp_path}/ca.crt", "-days", "30", "-subj", "/CN=cluster",
                "-addext", "basicConstraints=critical,CA:TRUE")  # fmt: skip
        # One more authority between, whom the first has signed, and which nodes show with their own.
        (tmp_path / "between.ext").write_text("basicConstraints=critical,CA:TRUE\n")
        openssl("req", "-newkey", "ed25519", "-nodes", "-keyout", f"{tmp_path}/between.key",
                "-out", f"{tmp_path}/between.csr", "-subj", "/CN=between")  # fmt: skip
        openssl("x509", "-req", "-in", f"{tmp_path}/between.csr", "-CA", f"{tmp_path}/ca.crt",
                "-CAkey", f"{tmp_path}/ca.key", "-CAcreateserial", "-days", "7",
                "-extfile", f"{tmp_path}/between.ext", "-out", f"{tmp_path}/between.crt")  # fmt: skip
        for node in made.nodes.values():
            shutil.rmtree(node.keys)
            node.keys.mkdir(mode=0o700)
            issuer = "ca" if algorithm == "RSA:3072" else "between"
            key, csr, extra = node.keys / "node.key", tmp_path / "csr", tmp_path / "ext"
            openssl("genpkey", "-algorithm", kind, "-pkeyopt", size, "-out", str(key))
            key.chmod(0o600)
            openssl("req", "-new", "-key", str(key), "-subj", f"/CN={node.name}", "-out", str(csr))
            extra.write_text(f"subjectAltName=URI:cableway://{node.name}\n")
            openssl("x509", "-req", "-in", str(csr), "-CA", f"{tmp_path}/{issuer}.crt",
                    "-CAkey", f"{tmp_path}/{issuer}.key", "-CAcreateserial", "-days", "7",
                    "-extfile", str(extra), "-out", str(node.keys / "node.crt"))  # fmt: skip
            if issuer == "between":
                with (node.keys / "node.crt").open("a") as chain:
                    chain.write((tmp_path / "between.crt").read_text())
            shutil.copy(tmp_path / "ca.crt", node.keys / "ca.crt")
        a, b = made.nodes.values()
        by_ca(a, b)
        by_ca(b, a)
        made.start()
        assert eventually(lambda: a.sees(b) and b.sees(a)), a.said() + b.said()
        exchange(a, b)


def test_a_pinned_key_wins_over_the_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with bridge_support.net("a", "b", "c") as made:
        a, b, c = made.nodes.values()
        for node in made.nodes.values():
            authority.sign(node)
        b.knows(a, *RIGHTS, key=c.print, address="")  # b pins another key for a than a has
        by_ca(a, b)
        made.start()
        # a's certificate is signed for a, and yet a is refused: the pin counts.
        assert eventually(lambda: "is not the one that is pinned for the peer a" in b.said())
        assert eventually(lambda: "refused this node's" in a.state_of(b).get("error", ""))
        # Who has the key that is pinned for a is a, though its certificate is signed for c.
        by_ca(c, b)
        assert eventually(lambda: b.sees(a)), b.said()
        assert b.state_of(a)["known_by"] == "key"
        assert c.sees(b) and not a.sees(b)
        # Some by key, others by the authority.
        c.command("peers", "remove", "b")
        b.knows(a, *RIGHTS, address="")
        by_ca(b, c, dials=False)
        by_ca(c, b)
        assert eventually(lambda: b.sees(a) and b.sees(c)), b.said()
        assert b.state_of(a)["known_by"] == "key" and b.state_of(c)["known_by"] == "ca"


def test_who_is_known_by_an_authority_may_change_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        for node in (a, b):
            authority.sign(node)
        by_ca(a, b)
        by_ca(b, a)
        made.start()
        assert eventually(lambda: a.sees(b)), a.said()
        exchange(a, b)
        b.stop()
        for file in ("node.key", "node.crt"):
            (b.keys / file).unlink()
        b.command("keygen", "--node", "b")
        authority.sign(b)
        b.start()
        assert eventually(lambda: a.sees(b) and b.sees(a)), a.said()
        exchange(a, b)
        # Without the authority nobody comes in that it alone vouched for, and links end.
        (a.keys / "ca.crt").rename(tmp_path / "aside")
        assert eventually(lambda: not a.sees(b)), a.said()
        assert eventually(lambda: "this node has none" in a.state_of(b)["error"]), a.said()
        (tmp_path / "aside").rename(a.keys / "ca.crt")
        assert eventually(lambda: a.sees(b)), a.said()


def test_files_that_others_may_change_are_not_believed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with bridge_support.net("a") as made:
        a = made.nodes["a"]
        authority.sign(a)
        for file, mode, says in (
            ("ca.crt", 0o664, "may be changed by others"),
            ("node.key", 0o640, "may be read by others"),
        ):
            good = (a.keys / file).stat().st_mode
            (a.keys / file).chmod(mode)
            shown = a.command("keygen", "--show", check=False)
            assert shown.returncode == 1 and says in shown.stderr and file in shown.stderr
            (a.keys / file).chmod(good)
        (a.keys / "ca.crt").write_text("no certificate\n")
        shown = a.command("keygen", "--show", check=False)
        assert shown.returncode == 1 and "loading ca.crt" in shown.stderr


def test_signing_asks_for_what_it_needs(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    key = (tmp_path / "ca/ca.key").read_bytes()
    assert (tmp_path / "ca/ca.key").stat().st_mode & 0o777 == 0o600
    again = authority.keygen("--ca", check=False)
    assert again.returncode == 1 and "File exists" in again.stderr
    assert (tmp_path / "ca/ca.key").read_bytes() == key
    with bridge_support.net("a") as made:
        a = made.nodes["a"]
        mine = str(a.keys / "node.crt")
        other = authority.keygen("--sign", mine, "--node", "b", check=False)
        assert other.returncode == 1 and 'of the node "a", not of "b"' in other.stderr
        assert other.stdout == ""
        signed = authority.keygen("--sign", mine, "--days", "2")
        assert "signed for the node a, until" in signed.stderr
        (tmp_path / "twice").write_text(signed.stdout)
        twice = authority.keygen("--sign", str(tmp_path / "twice"), check=False)
        assert twice.returncode == 1 and "not signed by its own key" in twice.stderr
        for words, says in (
            (["--sign", str(tmp_path / "none")], "No such file"),
            (["--sign", str(tmp_path / "ca/ca.key")], "not a certificate in PEM"),
            (["--sign", str(tmp_path / "ca/ca.crt")], "names no node"),
        ):
            failed = authority.keygen(*words, check=False)
            assert failed.returncode == 1 and says in failed.stderr, failed
        assert a.command("keygen", "--sign", mine, check=False).returncode == 1  # no ca.key there
        for words in (["--ca", "--show"], ["--days", "3"], ["--sign", mine, "--days", "0"],
                      ["--ca", "--node", "a"], ["extra"], ["--node", "a/b"]):  # fmt: skip
            assert authority.keygen(*words, check=False).returncode == 2, words
