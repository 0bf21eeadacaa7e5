"""The exporter's page in a real browser. Runs in `make test-more`."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import browser
import cuda_support
import numpy as np
import pytest
from browser import Browser
from cli_support import broker_pid, suspend
from conftest import eventually, running_broker
from exporter_process import Exporter

import cableway as cw

pytestmark = pytest.mark.skipif(
    browser.found() is None, reason="no browser (Debian's chromium or chromium-headless-shell)"
)
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "javascript:alert(4)",
    "{{7*7}}${alert(5)}",
    "\u202egnp.exe\u2028x",
]


@pytest.fixture(scope="module")
def exporter(broker_folder: Path) -> Iterator[Exporter]:
    assert broker_folder
    with Exporter() as made:
        yield made


@pytest.fixture
def page(exporter: Exporter) -> Iterator[Browser]:
    with Browser() as made:
        made.open(f"http://127.0.0.1:{exporter.port}/")
        yield made
        assert made.said == []


def cells(page: Browser, table: str, column: str) -> list[str]:
    """A column of a table, as it is shown."""
    return list(page.value(column_of(table, column)))


def column_of(table: str, column: str) -> str:
    """A script: the column of a table."""
    return f"""(() => {{
        const at = [...document.querySelectorAll("#{table} th")].findIndex(head => head.innerText.trim() === "{column}");
        return [...document.querySelectorAll("#{table} tbody tr")].map(row => row.children[at].textContent);
    }})()"""


def shows(table: str, text: str) -> str:
    """A script: whether a table has a text."""
    return f'document.querySelector("#{table} tbody").innerText.includes({text!r})'


def test_names_are_text_whatever_they_are(page: Browser, exporter: Exporter) -> None:
    held = [cw.put(f"page/{i}{name}", np.zeros(i + 1)) for i, name in enumerate(HOSTILE)]
    page.wait_for(shows("arrays", "page/5"))
    names = cells(page, "arrays", "NAME")
    assert [name for name in names if name.startswith("page/")] == [
        f"page/{i}{HOSTILE[i]}" for i in reversed(range(6))  # the largest first
    ]  # fmt: skip
    assert page.value('document.querySelectorAll("script, img, iframe, #arrays svg").length') == 1
    assert page.value('document.querySelectorAll("td *").length') == 0
    assert all(address.startswith((f"http://127.0.0.1:{exporter.port}/", "data:")) for address in page.asked)  # fmt: skip
    assert len(held) == 6


def test_it_shows_clients_memory_pools_and_queues_and_goes_on_by_itself(page: Browser) -> None:
    x = cw.put("page/mine", np.zeros(1 << 20))
    queue = cw.Queue()
    with cw.Pool(2) as pool:
        pool.map(abs, range(10))
        for i in range(7):
            queue.put(i)
        pid = str(os.getpid())
        # What is shown may be of a moment before the workers began, or before the items were put.
        page.wait_for(shows("pools", pid))
        page.wait_for(f"{column_of('pools', 'WORKERS')}.join() === '2'")
        page.wait_for(f"{shows('clients', pid)} && {shows('queues', pid)}")
        page.wait_for(f"{column_of('queues', 'ITEMS')}.includes('7')")
        assert "8.0 MiB" in cells(page, "arrays", "BYTES")
        assert "host" in page.value('document.getElementById("devices").innerText')
        assert page.value('document.querySelectorAll("#devices .bar .live").length') == 1
        assert "host memory" in page.value('document.getElementById("topology").textContent')
    page.wait_for(f"!{shows('pools', pid)}")  # nobody has touched the page
    cw.put("page/later", np.zeros(3)).close()
    page.wait_for(shows("arrays", "page/later"))
    assert x.nbytes == 8 << 20
    queue.close()


GPU_TEXT = """
import time
import cableway as cw
x = cw.empty(1 << 20, "f4", device="cuda:0")
cw.put("page/on a GPU", x, keep=True)
y = cw.zeros(1 << 20, "f4")
print("there", flush=True)
while True:
    x.copy_from(y)
    time.sleep(0.01)
"""


@pytest.mark.skipif(
    cuda_support.REAL or not cuda_support.DOUBLE.exists(), reason="the test double of the driver"
)
def test_gpus_stand_in_the_topology_and_what_is_copied_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    environment = {**os.environ, "CABLEWAY_DIR": str(folder), **cuda_support.double(tmp_path / "card")}  # fmt: skip
    with (
        subprocess.Popen([sys.executable, "-c", GPU_TEXT], env=environment, stdout=subprocess.PIPE) as child,
        Exporter(env=environment) as exporter,
        Browser() as page,
    ):  # fmt: skip
        assert child.stdout
        assert child.stdout.readline() == b"there\n"
        page.open(f"http://127.0.0.1:{exporter.port}/")
        page.wait_for(shows("arrays", "page/on a GPU"))
        assert page.value('document.querySelectorAll("#topology rect").length') == 2
        text = page.wait_for(
            'document.querySelectorAll("#topology .busy").length === 1 && document.getElementById("topology").textContent'
        )
        assert "GPU-" in text
        assert "to GPUs 0 B/s" not in text
        assert any(name.startswith("GPU-") for name in cells(page, "memory", "DEVICE"))
        assert cells(page, "routes", "ROUTE")[2] == "host to GPU"
        child.kill()
        page.wait_for('document.querySelectorAll("#topology .busy").length === 0')
        assert page.said == []
    os.kill(running_broker(folder), signal.SIGTERM)
    assert eventually(lambda: broker_pid(folder) == 0)


def test_rows_are_sorted_and_filtered_as_asked(page: Browser) -> None:
    held = [cw.put(f"sorted/{name}", np.zeros(size)) for name, size in (("b", 300), ("a", 200), ("c", 100))]  # fmt: skip
    page.wait_for(shows("arrays", "sorted/c"))
    page.value('document.querySelector("#arrays input").value = "SORTED/"; document.querySelector("#arrays input").dispatchEvent(new Event("input"))')  # fmt: skip
    assert cells(page, "arrays", "NAME") == ["sorted/b", "sorted/a", "sorted/c"]
    click = '[...document.querySelectorAll("#arrays th button")].find(b => b.textContent === "NAME").click()'
    page.value(click)
    assert cells(page, "arrays", "NAME") == ["sorted/a", "sorted/b", "sorted/c"]
    page.value(click)
    assert cells(page, "arrays", "NAME") == ["sorted/c", "sorted/b", "sorted/a"]
    assert len(held) == 3


def test_it_says_that_the_broker_is_stopped_or_dead_and_that_the_exporter_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    state = 'document.getElementById("state").innerText'
    with Exporter() as exporter, Browser() as page:
        page.open(f"http://127.0.0.1:{exporter.port}/")
        page.wait_for(f'{state} === "no broker runs"')
        with cw.connect(str(folder / "cablewayd-v4.sock")):
            cw.put("page/kept", np.zeros(3), keep=True).close()
            pid = running_broker(folder)
            page.wait_for(f"{state}.match(/^broker (idle|running)$/)")
            suspend(pid)
            page.wait_for(f'{state} === "broker stopped by a signal"')
            assert cells(page, "arrays", "NAME") == ["page/kept"]
            os.kill(pid, signal.SIGKILL)
            page.wait_for(f'{state} === "no broker runs"')
        assert page.value('document.getElementById("error").hidden')
        assert exporter.end() == 0
        page.wait_for(
            'document.getElementById("error").innerText.includes("The exporter does not answer")'
        )
        assert "What is shown is old" in page.value('document.getElementById("error").innerText')


class _Site(http.server.BaseHTTPRequestHandler):
    """Any site, with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_page_of_another_site_can_neither_read_nor_frame_it(
    exporter: Exporter, site: int
) -> None:
    ours = f"http://127.0.0.1:{exporter.port}"
    with Browser() as page:
        page.open(f"http://127.0.0.1:{site}/")
        for path in ("/state", "/metrics", "/"):
            ask = f'fetch("{ours}{path}").then(a => a.text()).catch(e => e.name)'
            assert page.value(ask) == "TypeError"
            ask = f'fetch("{ours}{path}", {{mode: "no-cors"}}).then(a => a.type).catch(e => e.name)'
            assert page.value(ask) == "TypeError"  # not even an answer that cannot be read
        assert page.value(f'fetch("http://127.0.0.1:{site}/").then(a => a.status)') == 200
        page.value(
            f'document.body.append(Object.assign(document.createElement("iframe"), {{src: "{ours}/"}}))'
        )
        page.wait_for("true")
        assert eventually(
            lambda: page.value("1") and any("frame-ancestors" in text for text in page.said)
        )


def test_a_name_that_was_pointed_here_is_not_answered(exporter: Exporter) -> None:
    with Browser(1280, 900, False, "--host-resolver-rules=MAP evil.example 127.0.0.1") as page:
        page.open(f"http://evil.example:{exporter.port}/")
        assert "neither an IP address nor a name of this machine" in page.value(
            "document.body.innerText"
        )
        page.open(f"http://localhost:{exporter.port}/")
        page.wait_for('document.getElementById("state").innerText.startsWith("broker ")')
