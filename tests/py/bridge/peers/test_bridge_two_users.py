"""docs/guide/several-machines.md: "Two users on one machine", word for word but for the port, by two users; and what else they get."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import ports
import pytest
from cli_support import FAILED, NO_NAME
from conftest import eventually

PAGE = Path(__file__).resolve().parents[4] / "docs/guide/several-machines.md"
WHY_NOT = (
    bridge_support.lacking()
    or ("" if PAGE.exists() else "no docs here")
    or ("" if os.geteuid() == 0 else "only root can be two users")
)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
USERS = {"alice": 61001, "bob": 61002}  # nobody need have them
PROGRAMS = ("cableway", "cablewayd", "cableway-bridge", "cableway-mover")


@pytest.fixture
def place() -> Iterator[Path]:
    """A home for each user, and the programs: ours may lie where other users cannot look."""
    folder = Path(tempfile.mkdtemp(prefix="cwusers-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "bin").mkdir(mode=0o755)
    for name in PROGRAMS:
        shutil.copy(bridge_support.program(name), folder / "bin" / name)
    for name, uid in USERS.items():
        (folder / name).mkdir(mode=0o700)
        os.chown(folder / name, uid, uid)
    try:
        yield folder
    finally:
        for name in USERS:
            as_user(folder, name, "cableway stop --yes --force")
        shutil.rmtree(folder)


def as_user(folder: Path, name: str, command: str) -> subprocess.CompletedProcess[str]:
    home = folder / name
    environment = {"HOME": str(home), "PATH": f"{folder}/bin:/usr/bin:/bin", "CABLEWAY_DIR": f"{home}/broker"}  # fmt: skip
    return subprocess.run(
        ["sh", "-c", command], user=USERS[name], group=USERS[name], extra_groups=[], env=environment, cwd=home,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def lines() -> list[tuple[str, str]]:
    """User and command, in the order of the text."""
    section = PAGE.read_text().split("## Two users on one machine")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    found = []
    for line in block.splitlines():
        match = re.fullmatch(r"(.*?)\s+# (alice|bob)\b.*", line)
        assert match, line
        found.append((match[2], match[1]))
    return found


def test_two_users_share_what_one_allows_and_nothing_else(place: Path) -> None:
    array = np.arange(1000.0)
    np.save(place / "alice/x.npy", array)
    (place / "alice/x.npy").chmod(0o644)
    prints: dict[str, str] = {}
    held = ports.held_port()
    for name, command in lines():
        for other, text in prints.items():
            command = command.replace(f"sha256:{other[0].upper() * 4}...", text)
        done = as_user(place, name, command.replace("7401", str(held.getsockname()[1])))
        assert done.returncode == 0, (command, done)
        if "keygen" in command:
            prints[name] = done.stdout.strip()
    np.testing.assert_equal(np.load(place / "bob/x.npy"), array)
    # What bob may not read is not there for him, and its name is not listed.
    assert as_user(place, "alice", "cableway put own/x x.npy --keep").returncode == 0
    assert as_user(place, "bob", "cableway get //alice/own/x y.npy").returncode == NO_NAME
    assert eventually(lambda: "for-bob/x" in as_user(place, "bob", "cableway ls //alice/").stdout)
    assert "own/x" not in as_user(place, "bob", "cableway ls //alice/").stdout
    assert as_user(place, "bob", "cableway cp x //alice/for-bob/x").returncode != 0
    # Neither user reaches the other's broker itself.
    reach = as_user(place, "bob", f"CABLEWAY_DIR={place}/alice/broker cableway ls")
    assert reach.returncode == FAILED
    assert "Permission denied" in reach.stderr
    # A third one, with a key that nobody has listed, gets nothing at the port.
    theirs = "mkdir m && export CABLEWAY_DIR=$PWD/m CABLEWAY_NODE_DIR=$PWD/m/key && cableway keygen --node mallory"
    asks = f"cableway peers add alice 127.0.0.1:{held.getsockname()[1]} --key {prints['alice']} && cablewayd --node mallory"
    assert as_user(place, "bob", f"chmod 700 . && umask 077 && {theirs} && {asks}").returncode == 0
    refused = as_user(place, "bob", "export CABLEWAY_DIR=$PWD/m CABLEWAY_NODE_DIR=$PWD/m/key; cableway get //alice/for-bob/x z.npy; code=$?; cableway stop --yes --force; exit $code")  # fmt: skip
    assert refused.returncode == FAILED, refused
    assert not (place / "bob/z.npy").exists()
    held.close()
