"""Authorities for tests: one made by ours, and certificates of every kind by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

from bridge_support import Node, program


def openssl_lacking() -> str:
    """Why there is no openssl command here; "" if there is."""
    return "" if shutil.which("openssl") else "no openssl command"


class Authority:
    """A folder with ca.key and ca.crt, made by `cableway keygen --ca`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keygen("--ca")
        (folder / "index").write_text("")
        (folder / "index.attr").write_text("unique_subject = no\n")
        (folder / "serial").write_text("1000")

    def keygen(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`cableway keygen` in this folder."""
        return subprocess.run(
            [program("cableway"), "keygen", *words],
            env={"CABLEWAY_NODE_DIR": str(self.folder), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=check, timeout=30,
        )  # fmt: skip

    def sign(self, node: Node) -> None:
        """Signs a node's own certificate, with ours alone, and lets the node go by this authority."""
        signed = self.keygen("--sign", str(node.keys / "node.crt"), "--node", node.name).stdout
        (node.keys / "node.crt").write_text(signed)
        shutil.copy(self.folder / "ca.crt", node.keys / "ca.crt")

    def issue(
        self, keys: Path, names: str, *, begins_days: float = -1, ends_days: float = 1,
        purpose: str = "serverAuth,clientAuth",
    ) -> None:  # fmt: skip
        """A certificate for keys/node.key, of any kind, by openssl; names as subjectAltName, "" for none."""

        def stamp(days: float) -> str:
            moment = datetime.now(timezone.utc) + timedelta(days=days)
            return moment.strftime("%Y%m%d%H%M%SZ")

        f = self.folder
        config = (
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={f}/index\nserial={f}/serial\nnew_certs_dir={f}\n"
            "default_md=default\npolicy=p\nx509_extensions=e\n[p]\ncommonName=supplied\n"
            "[req]\ndistinguished_name=n\nprompt=no\n[n]\nCN=any\n"
            f"[e]\nbasicConstraints=CA:FALSE\nextendedKeyUsage={purpose}\n"
        )
        (f / "cnf").write_text(config + (f"subjectAltName={names}\n" if names else ""))
        for words in (
            ["req", "-new", "-config", f"{f}/cnf", "-key", f"{keys}/node.key", "-out", f"{f}/csr"],
            ["ca", "-batch", "-config", f"{f}/cnf", "-cert", f"{f}/ca.crt", "-keyfile", f"{f}/ca.key",
             "-in", f"{f}/csr", "-startdate", stamp(begins_days), "-enddate", stamp(ends_days),
             "-out", f"{f}/made", "-notext"],
        ):  # fmt: skip
            subprocess.run(["openssl", *words], check=True, capture_output=True)
        (f / "made").rename(keys / "node.crt")
