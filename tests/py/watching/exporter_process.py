"""An exporter in a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

SECONDS = 60.0


class Exporter:
    """Runs from `with` to its end.

    Attributes:
        port: where it listens.
        said: what it has written to stderr, at the end.
    """

    def __init__(self, *arguments: str, listen: str = "127.0.0.1:0", **options: Any) -> None:
        command = [sys.executable, "-m", "cableway.exporter", "--listen", listen, *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, bufsize=0, **options)
        assert self.process.stderr
        self.said = self.process.stderr.readline().decode()
        found = re.search(r":(\d+)/ is the page", self.said)
        assert found, self.said + self.process.stderr.read().decode()
        self.port = int(found[1])

    def __enter__(self) -> Exporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            assert self.end() == 0, self.said

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ends it by a signal; its exit code."""
        self.process.send_signal(number)
        self.said += self.process.communicate(timeout=SECONDS)[1].decode()
        return self.process.returncode

    def ask(
        self, path: str, method: str = "GET", host: str = "127.0.0.1", **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body."""
        connection = http.client.HTTPConnection(host, self.port, timeout=SECONDS)
        try:
            connection.request(
                method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def state(self) -> Any:
        """What the page is made of."""
        status, _, body = self.ask("/state")
        assert status == 200, body
        return json.loads(body)

    def connect(self) -> socket.socket:
        """A connection on which nothing was said yet."""
        return socket.create_connection(("127.0.0.1", self.port), SECONDS)

    def send(self, text: bytes) -> bytes:
        """What it answers to these bytes, until it closes."""
        with self.connect() as connection:
            connection.sendall(text)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
            return answer
