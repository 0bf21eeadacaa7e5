"""Variables that are misspelt are told, by the broker and by `cableway doctor`; those of others are not."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from cli_support import COMMAND, run, run_json
from conftest import stop_broker

ROOT = Path(__file__).resolve().parents[3]
READ_BY = ("ipc/**/*.[ch]", "broker/**/*.c", "shm/**/*.[ch]", "tools/*.c", "tools/*/*.c", "py/cableway/**/*.py", "py/csrc/**/*.[ch]", "py/*.py")  # fmt: skip
# A variable's name stands alone in a string; in sentences it does not.
READS = re.compile(r"""["'](CABLEWAY_[A-Z_]+)["']""")
OF_BUILDS = {"CABLEWAY_BUILD_DIR"}  # of setup.py


def doctor(**variables: str) -> list[dict[str, str]]:
    done = subprocess.run(
        [COMMAND, "doctor", "--json"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return [row for row in json.loads(done.stdout)["checks"] if row["check"] == "environment"]


def read_by_us() -> set[str]:
    """All variables that programs and the package read, by the sources."""
    found: set[str] = set()
    for pattern in READ_BY:
        for path in ROOT.glob(pattern):
            found |= set(READS.findall(path.read_text()))
    return found - OF_BUILDS


def test_every_variable_that_the_sources_read_is_known() -> None:
    names = read_by_us()
    assert {"CABLEWAY_DIR", "CABLEWAY_NAMESPACE", "CABLEWAY_BROKER"} <= names
    doctor()  # starts a broker
    limits = {f"CABLEWAY_{name.upper()}" for name in run_json("status")["limits"]}
    told = json.dumps(doctor(**{name: os.environ.get(name, "") for name in names | limits}))
    for name in names | limits:
        assert not re.search(rf"\b{name}\b", told), (
            f"{name} is read: add it to shm/session/variable.c"
        )


@pytest.mark.parametrize(
    "name, meant",
    [
        ("CABLEWAY_MAX_BYTE", "CABLEWAY_MAX_BYTES"),
        ("CABLEWAY_MAX_CLIENT", "CABLEWAY_MAX_CLIENTS"),
        ("CABLEWAY_NAME_SPACE", "CABLEWAY_NAMESPACE"),
        ("CABLEWAY_DIRR", "CABLEWAY_DIR"),
        ("CABLEWAY_TRACEE", "CABLEWAY_TRACE"),
        ("CABLEWAY_TRAC", "CABLEWAY_TRACE"),
        ("CABLEWAY_GROPU", "CABLEWAY_GROUP"),
        ("CABLEWAY_MAX-BYTES", "CABLEWAY_MAX_BYTES"),
    ],
)
def test_what_was_meant_is_named(name: str, meant: str, tmp_path: Path) -> None:
    (row,) = [row for row in doctor(**{name: "1"}) if row["level"] == "warning"]
    assert name in row["found"]
    assert row["remedy"] == f"did you mean {meant}?"
    tmp_path.chmod(0o700)
    env = {"CABLEWAY_DIR": str(tmp_path), name: "1"}
    try:
        run("broker", env=env)
        (error,) = run_json("log", env=env)["errors"]
        assert f"did you mean {meant}?" in error["error"]
        assert name in error["error"]
    finally:
        stop_broker(tmp_path)


def test_names_of_others_are_no_fault(tmp_path: Path) -> None:
    """Of tests, of CI, of a later version: all that the repository itself uses among them."""
    used = set()
    for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("tests/**/*.sh"), ROOT / "Makefile"):
        used |= set(re.findall(r"\bCABLEWAY_[A-Z_]+[A-Z]\b", path.read_text()))
    others = sorted({*used, "CABLEWAY_FROM_THE_FUTURE", "CABLEWAY_", "CABLEWAY_X"} - MISSPELT)
    rows = doctor(**{name: "" for name in others if name not in read_by_us()})
    assert [row["level"] for row in rows] in ([], ["info"]), rows
    tmp_path.chmod(0o700)
    env = {"CABLEWAY_DIR": str(tmp_path), "CABLEWAY_FROM_THE_FUTURE": "1", "CABLEWAY_SOAK": "1"}
    try:
        run("broker", env=env)
        assert run_json("log", env=env)["errors"] == []
    finally:
        stop_broker(tmp_path)


MISSPELT = {"CABLEWAY_MAX_BYTE", "CABLEWAY_MAX_CLIENT", "CABLEWAY_NAME_SPACE", "CABLEWAY_DIRR", "CABLEWAY_TRACEE", "CABLEWAY_TRAC", "CABLEWAY_GROPU"}  # fmt: skip
