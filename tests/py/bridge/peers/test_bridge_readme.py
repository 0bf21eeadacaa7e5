"""The guide's "Two machines in five minutes", word for word, between two network namespaces."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import bridge_support
import pytest
from cli_support import broker_pid
from conftest import eventually

PAGE = Path(__file__).resolve().parents[4] / "docs/guide/several-machines.md"
WHY_NOT = bridge_support.lacking() or bridge_support.namespaces_lacking()
pytestmark = pytest.mark.skipif(
    bool(WHY_NOT) or not PAGE.exists(), reason=WHY_NOT or "no docs here"
)


def lines() -> list[tuple[str, str, bool]]:
    """Node, command, and whether it is Python, in the order of the text."""
    section = PAGE.read_text().split("## Two machines in five minutes")[1].split("\n## ")[0]
    found = []
    for kind, block in re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL):
        for line in block.splitlines():
            match = re.fullmatch(r"(.*?)\s+# on ([ab])\b.*", line)
            assert match, line
            found.append((match[2], match[1], kind == "python"))
    return found


def test_two_machines_in_five_minutes() -> None:
    with bridge_support.net("a", "b", namespaces=True) as made:
        bin_folder = Path(bridge_support.program("cableway")).parent
        prints: dict[str, str] = {}
        programs = {
            "a": "import cableway as cw, numpy as np\n",
            "b": "import cableway as cw, numpy as np\n",
        }
        for node in made.nodes.values():
            shutil.rmtree(node.keys)  # the text begins with nothing
            node.environment["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
        try:
            for name, command, is_python in lines():
                node = made.nodes[name]
                if is_python:
                    if name == "b" and programs["a"].count("\n") > 1:
                        run_python(
                            made.nodes["a"], programs.pop("a") + "import time; time.sleep(0.1)\n"
                        )
                        programs["a"] = ""
                    programs[name] += command + "\n"
                    continue
                command = command.replace("10.213.7.", made.subnet)
                for other, text in prints.items():
                    command = command.replace(f"sha256:{other.upper() * 4}...", text)
                done = subprocess.run(
                    node.inside(["sh", "-c", command]),
                    env=node.environment, capture_output=True, text=True, timeout=30, check=False,
                )  # fmt: skip
                assert done.returncode == 0, (command, done)
                if "keygen" in command:
                    prints[name] = done.stdout.strip()
            out = run_python(made.nodes["b"], programs["b"])
            assert "['inbox/result'" in out or "shared/weights" in out
            assert "shape=(1000, 1000)" in out, out
            with made.nodes["a"].here():
                import cableway as cw

                assert cw.get("inbox/result").shape == (1000,)
        finally:
            for node in made.nodes.values():
                pid = broker_pid(node.folder)
                if pid:
                    os.kill(pid, signal.SIGTERM)
                    assert eventually(lambda n=node: broker_pid(n.folder) == 0)


def run_python(node: bridge_support.Node, text: str) -> str:
    """Runs a program on a node, as its user would."""
    done = subprocess.run(
        node.inside([sys.executable, "-c", text]),
        env=node.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (text, done)
    return done.stdout
