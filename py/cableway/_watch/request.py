"""A request, read by http.server from the bytes that have come, and its answer.

Everything here is of anybody: whoever can reach the port, and every web page that the user's browser has open. So:
    - only GET and HEAD, only four paths, no body, nothing is changed by any request;
    - the Host header must be an IP address (any), or a name of this machine. A page of another site can make its own name point here (DNS
      rebinding), and could then read; the name that it has to send gives it away;
    - no CORS header: another site's page cannot read an answer. What a page of ours may do, its Content-Security-Policy says: run
      the one script and the one style sheet that are in it, and ask this server. The script writes text, never HTML.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import socket
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["OPENMETRICS", "PAGE", "Request", "is_host_known", "prefers_openmetrics", "text_format"]

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
PAGE = Path(__file__).with_name("page.html").read_bytes()


def _hash_of(tag: str) -> str:
    (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside).digest()).decode()}'"


_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash_of('script')}; style-src {_hash_of('style')}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def is_host_known(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header means this machine: an address, localhost, its own name, or one of names."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
        return True
    except ValueError:
        own = socket.gethostname().lower()
        return name in {"localhost", own, own.partition(".")[0], *names}


def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header likes OpenMetrics at least as well as the older text format; both have to be named for less.

    >>> prefers_openmetrics("application/openmetrics-text;version=1.0.0;q=0.5, text/plain;q=0.3, */*;q=0.1")
    True
    >>> prefers_openmetrics("application/openmetrics-text;q=0"), prefers_openmetrics("*/*")
    (False, False)
    """
    likes = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind in likes:
            likes[kind] = max(likes[kind], _quality(parameters))
    openmetrics, text = likes.values()
    return openmetrics > 0 and openmetrics >= text


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            digits = value.strip()
            return float(digits) if re.fullmatch(r"[01](\.[0-9]{0,3})?", digits) else 0.0
    return 1.0


def text_format(metrics: bytes) -> bytes:
    """OpenMetrics text as Prometheus's older text format: there a counter's family is called as its samples are.

    >>> text_format(b"# TYPE a counter\\n# UNIT a bytes\\n# HELP a so many\\na_total 1\\n# EOF\\n")
    b'# TYPE a_total counter\\n# HELP a_total so many\\na_total 1\\n'
    """
    counters = {*re.findall(rb"^# TYPE (\S+) counter$", metrics, re.MULTILINE)}
    lines = []
    for line in metrics.splitlines(keepends=True):
        words = line.split(b" ", 3)
        if words[0] == b"#":
            if words[1] in (b"UNIT", b"EOF\n"):
                continue
            if words[2] in counters:
                line = b" ".join([*words[:2], words[2] + b"_total", words[3]])
        lines.append(line)
    return b"".join(lines)


class Request(BaseHTTPRequestHandler):
    """One request, without a connection.

    Args:
        text: the bytes of its line and headers, with the empty line.

    Attributes:
        refused: it is not well formed, and `answer` says so.
        answer: the bytes to send.
    """

    server_version = "cableway"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # HTTP/0.9, where an answer has no status
    headers: Message

    def __init__(self, text: bytes) -> None:  # instead of the base's, which serves at once
        self.rfile = BytesIO(text)
        self.wfile: BytesIO = BytesIO()
        self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
        self.close_connection = True
        self.raw_requestline = self.rfile.readline()
        self.refused = not self.parse_request()
        if self.refused and not self.answer:  # an empty line
            self.send_error(HTTPStatus.BAD_REQUEST, "there is no request")

    @property
    def answer(self) -> bytes:
        """What is to be sent."""
        return self.wfile.getvalue()

    @property
    def resource(self) -> str:
        """The path, without a query. A proxy's request names the whole address."""
        return self._whole_address()[1].partition("?")[0]

    def _whole_address(self) -> tuple[str, str]:
        """The host that the request line names, "" where it names none, and the path."""
        if self.path[:7].lower() != "http://":
            return "", self.path
        host, slash, rest = self.path[7:].partition("/")
        return host, slash + rest if slash else "/"

    def mistake(self, hosts: frozenset[str]) -> tuple[HTTPStatus, str] | None:
        """What is wrong with a request that is well formed, as http.server sees it."""
        sent = self.headers.get_all("Host", [])
        named, _ = self._whole_address()
        if self.command not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"
        if self.request_version not in ("HTTP/1.0", "HTTP/1.1"):
            return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.0 and HTTP/1.1"
        if len(sent) > 1 or (not sent and self.request_version == "HTTP/1.1"):
            return HTTPStatus.BAD_REQUEST, f"{len(sent)} Host headers instead of one"
        for host in (*(one.strip() for one in sent), *([named] if named else [])):
            if not is_host_known(host, hosts):
                return (
                    HTTPStatus.MISDIRECTED_REQUEST,
                    f"the request's host is {host[:200]!r}, which is neither an IP address nor a name of this machine; "
                    "`cableway exporter --host NAME` allows another name",
                )
        if "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0") != "0":
            return HTTPStatus.BAD_REQUEST, "GET and HEAD have no body here"
        return None

    def reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        """Makes the answer."""
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_page(self) -> None:
        """Answers with the page."""
        self.reply(HTTPStatus.OK, "text/html; charset=utf-8", PAGE)

    def reply_metrics(self, text: bytes) -> None:
        """Answers with figures, in the format that the scraper reads."""
        if prefers_openmetrics(", ".join(self.headers.get_all("Accept", []))):
            self.reply(HTTPStatus.OK, OPENMETRICS, text)
        else:
            self.reply(HTTPStatus.OK, _TEXT_FORMAT, text_format(text))

    # ---- what the base class calls

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers with a sentence. What the request said may be in it: it is text, and no browser takes it for HTML."""
        status = HTTPStatus(code)
        said = message or status.description or status.phrase
        self.reply(status, "text/plain; charset=utf-8", f"{said}\n".encode(errors="replace"))

    def handle_expect_100(self) -> bool:
        """No body is wanted, so nothing is said in between."""
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: a page that is open asks each second."""
