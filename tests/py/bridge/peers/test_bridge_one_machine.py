"""docs/guide/several-machines.md: "Two nodes on one machine", word for word but for the folder and the ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import bridge_support
import ports
import pytest
from conftest import stop_broker

PAGE = Path(__file__).resolve().parents[4] / "docs/guide/several-machines.md"
WHY_NOT = bridge_support.lacking() or ("" if PAGE.exists() else "no docs here")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def test_two_nodes_on_one_machine(tmp_path: Path) -> None:
    text = PAGE.read_text().split("## Two nodes on one machine")[1]
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block
    held = [ports.held_port() for _ in range(2)]
    script = block[1].replace("/tmp/two-", f"{tmp_path}/")
    for number, sock in enumerate(held, 7401):
        script = script.replace(str(number), str(sock.getsockname()[1]))
    programs = Path(bridge_support.program("cableway")).parent
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        done = subprocess.run(
            ["sh", "-e", "-c", script],
            env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done
        lines = done.stdout.splitlines()
        assert lines[0] == "[1 2 3]", done
        assert re.search(r"^//a/shared/x .*\(3,\)", done.stdout, re.MULTILINE), done
        assert re.search(r"^inbox/y .*\(2,\)", done.stdout, re.MULTILINE), done
        assert re.search(r"^b .*connected", done.stdout, re.MULTILINE), done
        assert not list(tmp_path.iterdir())
    finally:
        for node in ("a", "b"):
            if (tmp_path / node).exists():
                stop_broker(tmp_path / node)
        for sock in held:
            sock.close()
