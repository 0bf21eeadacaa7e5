"""Whoever can reach the exporter's port says what he likes, as slowly as he likes, as often as he likes: others are served."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from exporter_process import SECONDS, Exporter

import cableway as cw
from cableway._watch import server

LINE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def exporter(broker_folder: Path) -> Iterator[Exporter]:
    assert broker_folder
    with Exporter() as made:
        yield made
        made.end()
    assert made.said.count("\n") == 1, made.said  # nothing that anybody sent was an error of ours


def status(answer: bytes) -> int:
    """The number in the first line."""
    assert answer.startswith(b"HTTP/1."), answer[:100]
    return int(answer.split(b" ", 2)[1])


@pytest.fixture(autouse=True)
def serves_others(exporter: Exporter) -> Iterator[None]:
    yield
    begun = time.monotonic()
    assert exporter.ask("/metrics")[0] == 200
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LINE + b"\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),  # without a Host
        (LINE + b"Host: localhost\r\n\r\n", 400),
        (b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", 404),
        (b"GET /metrics/../state HTTP/1.0\r\n\r\n", 404),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.0\r\n\r\n", 404),
        (b"GET //metrics HTTP/1.0\r\n\r\n", 200),  # http.server makes one slash of them
        (b"GET http://evil.example/state HTTP/1.0\r\n\r\n", 421),
        (b"GET \x00\xff HTTP/1.0\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"OPTIONS / HTTP/1.0\r\nOrigin: http://evil.example\r\n\r\n", 405),
        (b"CONNECT localhost:22 HTTP/1.0\r\n\r\n", 405),
        (b"TRACE / HTTP/1.0\r\n\r\n", 405),
        (b"get / HTTP/1.0\r\n\r\n", 405),
        (LINE + b"Content-Length: 3\r\n\r\nabc", 400),
        (LINE + b"Content-Length: -1\r\n\r\n", 400),
        (LINE + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nabc", 400),
        (LINE + b"Transfer-Encoding: chunked\r\n\r\nno number\r\n\r\n\r\n", 400),
        (LINE + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1.1\r\n\r\n", 400),
        (b"GET / FTP/1.0\r\n\r\n", 400),
        (b"GET / HTTP/x.1\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (LINE + b"no colon\r\n\r\n", 200),
        (LINE + b"A: b\r\n" * 200 + b"\r\n", 431),
        (LINE + b"A: " + b"b" * (20 << 10) + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * (20 << 10) + b" HTTP/1.0\r\n\r\n", 431),
        (b"a" * (1 << 20), 431),
    ],
)
def test_a_request_is_answered_whatever_it_is(
    exporter: Exporter, text: bytes, expected: int
) -> None:
    answer = exporter.send(text)
    assert status(answer) == expected, answer[:300]
    assert b"Traceback" not in answer
    assert b"root:" not in answer
    if expected != 200:
        assert b"Content-Type: text/plain" in answer
    assert answer.lower().count(b"content-length:") == 1


def test_what_a_request_said_is_not_markup_in_the_answer(exporter: Exporter) -> None:
    for text in (b"GET /<script>alert(1)</script> HTTP/1.0\r\n\r\n", b"<script>alert(1)</script> / HTTP/1.0\r\n\r\n",
                 b"GET / HTTP/1.0\r\nHost: <script>alert(1)</script>\r\n\r\n"):  # fmt: skip
        answer = exporter.send(text)
        assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in answer
        assert b"\r\nX-Content-Type-Options: nosniff\r\n" in answer


def test_a_header_cannot_be_smuggled_into_the_answer(exporter: Exporter) -> None:
    answer = exporter.send(b"GET /a\rSet-Cookie:x HTTP/1.0\r\nHost: a\rSet-Cookie: x\r\n\r\n")
    assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0].lower()


def test_a_thousand_connections_that_say_nothing_stop_nobody(exporter: Exporter) -> None:
    """They get the places of each other, and an honest one is answered meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    idle: list[socket.socket] = []
    try:
        for i in range(1000):
            idle.append(exporter.connect())
            if i % 2:
                with contextlib.suppress(OSError):
                    idle[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            if i % 100 == 99:
                begun = time.monotonic()
                assert exporter.ask("/metrics")[0] == 200
                assert time.monotonic() - begun < 2
        fds = len(list(Path(f"/proc/{exporter.process.pid}/fd").iterdir()))
        assert fds < server.CONNECTIONS_MAX + 30
    finally:
        for one in idle:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_does_not_read_the_answer_gives_way(exporter: Exporter) -> None:
    held = [cw.put("attack/" + "x" * 180 + str(i), np.zeros(1), keep=True) for i in range(600)]
    assert eventually(lambda: exporter.state()["totals"]["arrays"] >= 600)
    idle = []
    try:
        for _ in range(server.CONNECTIONS_MAX + 20):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(SECONDS)
            one.connect(("127.0.0.1", exporter.port))
            one.sendall(b"GET /state HTTP/1.0\r\n\r\n")
            idle.append(one)
        assert len(exporter.state()["arrays"]) == 500
    finally:
        for one in idle:
            one.close()
        for array in held:
            array.close()


def test_who_goes_away_in_the_middle_is_no_error(exporter: Exporter) -> None:
    for text in (b"", b"GET", LINE, LINE + b"\r\n", b"GET /state HTTP/1.0\r\n\r\n"):
        for how in (None, b"\1\0\0\0\0\0\0\0"):  # SO_LINGER of 0 s: a reset
            with exporter.connect() as gone:
                gone.sendall(text)
                if how:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)


def test_two_requests_in_one_connection_get_one_answer(exporter: Exporter) -> None:
    answer = exporter.send(b"GET /metrics HTTP/1.0\r\n\r\n" * 50)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in answer
    assert answer.endswith(b"\n")


def test_one_address_cannot_have_all_places(exporter: Exporter) -> None:
    """What is being answered is not cut, so another address needs places that this one cannot take."""
    asked = []
    try:
        for _ in range(server.ADDRESS_CONNECTIONS_MAX + 40):
            one = socket.create_connection(("127.0.0.1", exporter.port), SECONDS, ("127.0.0.2", 0))
            one.sendall(b"GET /state HTTP/1.0\r\n\r\n")
            asked.append(one)
        fds = len(list(Path(f"/proc/{exporter.process.pid}/fd").iterdir()))
        assert fds < server.ADDRESS_CONNECTIONS_MAX + 25
        assert exporter.ask("/state")[0] == 200
        answers = []
        for one in asked:
            with contextlib.suppress(ConnectionResetError):  # it was cut
                answers.append(one.recv(65536))
        numbers = [status(answer) for answer in answers if answer]
        assert set(numbers) <= {200, 503}
        assert numbers.count(200) >= server.ADDRESS_CONNECTIONS_MAX // 2
    finally:
        for one in asked:
            one.close()
