"""A headless Chromium, told what to do over the DevTools protocol: JSON through two pipes, so that nothing but it is needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60.0
_FDS = (3, 4)  # where the browser reads and writes


def found() -> str | None:
    """The browser of this machine, of $CABLEWAY_TEST_BROWSER or PATH."""
    names = [os.environ.get("CABLEWAY_TEST_BROWSER", ""), *PROGRAMS]
    return next((path for name in names if name and (path := shutil.which(name))), None)


class Browser:
    """One page, from `with` to its end.

    Attributes:
        said: what the page and the browser wrote to the console: errors of scripts, requests that a policy refused.
        asked: the addresses of all requests.
    """

    def __init__(
        self, width: int = 1280, height: int = 900, dark: bool = False, *words: str
    ) -> None:
        program = found()
        assert program, "no browser is installed"
        self._folder = tempfile.TemporaryDirectory(prefix="cwbrowser-")
        command = [
            program, *words, "--headless", "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "--disable-gpu",
            "--no-first-run", "--disable-extensions", f"--window-size={width},{height}", "--hide-scrollbars", "--force-color-profile=srgb",
        ]  # fmt: skip
        if os.getuid() == 0:
            command.append("--no-sandbox")  # it refuses to run as root with it
        reads, self._write = os.pipe()
        self._read, writes = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (reads, writes)]

        def renumber() -> None:
            for fd, wanted in zip(high, _FDS, strict=True):
                os.dup2(fd, wanted, inheritable=True)

        self.process = subprocess.Popen(
            [*command, "about:blank"], preexec_fn=renumber, pass_fds=_FDS, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},  # of a sanitizer
        )  # fmt: skip
        for fd in (reads, writes, *high):
            os.close(fd)
        self._number = 0
        self._text = b""
        self._session: str | None = None
        self.said: list[str] = []
        self.asked: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = [target["targetId"] for target in targets if target["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)  # fmt: skip
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])  # fmt: skip

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._read)
        os.close(self._write)
        for _ in range(50):  # its children end a little later, and write there until then
            try:
                self._folder.cleanup()
                return
            except OSError:
                time.sleep(0.1)

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + SECONDS
        while True:
            answer = self._next(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._note(answer)

    def _next(self, end: float) -> Any:
        while b"\0" not in self._text:
            left = end - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._read], [], [], left)[0]:
                text = os.read(self._read, 1 << 20)
                assert text, "the browser has ended"
                self._text += text
        message, _, self._text = self._text.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        told = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(part.get("value", part.get("description"))) for part in told["args"]))  # fmt: skip
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(told["exceptionDetails"].get("exception", {}).get("description", told)))  # fmt: skip
        elif event.get("method") == "Log.entryAdded":
            self.said.append(told["entry"]["text"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {told['message']}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])

    def open(self, address: str) -> None:
        """Goes there, and waits until the page has loaded."""
        told = self.call("Page.navigate", url=address)
        assert "errorText" not in told, told
        self.wait_for('document.readyState === "complete" && location.href !== "about:blank"')

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str, seconds: float = SECONDS) -> Any:
        """Until an expression is true in the page; its value."""
        end = time.monotonic() + seconds
        while not (value := self.value(script)):
            assert time.monotonic() < end, (script, self.said, self.value("document.body.innerText"))  # fmt: skip
            time.sleep(0.05)
        return value

    def picture(self, height: int) -> bytes:
        """The page as a PNG, down to that height."""
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])  # fmt: skip
