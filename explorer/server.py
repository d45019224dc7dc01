"""The web server of the pages, on Python's standard library.

Each address begins with a random token, which only the command prints. Requests with another host
or from another site are rejected, and only POST requests compute anything. Each request has a
separate thread, so that a long computation does not block other pages.
"""

import dataclasses
import hmac
import json
import math
import mimetypes
import re
import secrets
import socket
import sys
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from ..settings.printable import printable
from ..settings.user_errors import explanation, place_of

LOOPBACK = "127.0.0.1"
LOCAL = (LOOPBACK, "localhost", "::1")  # addresses that only this machine reaches
ALL = ("0.0.0.0", "::")  # addresses that stand for every address of this machine
MAX_REQUEST_BYTES = 2_000_000  # longest body that a request may have
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Content(NamedTuple):
    """The content of an answer to a request."""

    body: bytes
    kind: str = "text/html; charset=utf-8"


@dataclasses.dataclass(frozen=True)
class Site:
    """The pages and the calls of a server.

    Attributes:
      pages: address of a GET request without its token -> its answer; None for no such page.
      calls: name of a POST request -> function of its JSON object that returns a JSON value.
    """

    pages: Callable[[str, Mapping[str, str]], Content | None]
    calls: Mapping[str, Callable[[dict], Any]]


class Server(ThreadingHTTPServer):
    """Serves a site on one port of this machine.

    Args:
      port: the port; 0 for a free one.

    Raises ValueError if the server cannot listen there, for example if the port is in use.
    """

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0, host: str = LOOPBACK):
        self.site = site
        self.token = secrets.token_urlsafe(24)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(
                f"Cannot listen at --host={host} and --port={port}: {reason}. Choose another port, "
                "or none for a free one, and an address of this machine as the host."
            ) from error
        self.host = host

    @property
    def address(self) -> str:
        """The address of the first page."""
        host = socket.gethostname() if self.host in ALL else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.server_address[1]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that close a connection; prints the traceback of other errors."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            traceback.print_exc()

    def begin(self) -> threading.Thread:
        """Serves in another thread, and returns it."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        return thread


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that a client may take to send or receive a part
    server_version = "pretrax"
    sys_version = ""

    def do_GET(self) -> None:
        if (path := self._path()) is None:
            return
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        try:
            answer = self.server.site.pages(path, query)
        except (ValueError, OSError) as error:
            self._refuse(HTTPStatus.NOT_FOUND, explanation(error) or "This page does not exist.")
            return
        if answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, "This page does not exist.")
        else:
            self._send(HTTPStatus.OK, answer)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if (path := self._path()) is None:
            return
        call = self.server.site.calls.get(path.removeprefix("api/"))
        if call is None:
            self._refuse(HTTPStatus.NOT_FOUND, "This call does not exist.")
            return
        if (content := self._json()) is None:
            return
        status, value = self._called(call, content)
        body = json.dumps(_plain(value), ensure_ascii=False).encode()
        self._send(status, Content(body, "application/json"))

    def _called(self, call: Callable, content: dict) -> tuple[HTTPStatus, Any]:
        try:
            return HTTPStatus.OK, call(content)
        except (Exception, SystemExit) as error:  # a user's objective may raise any error, or exit
            place = place_of(error)
            message = explanation(error) if isinstance(error, Exception) else None
            if message is None and not place:
                traceback.print_exc()
            message = message or f"{type(error).__name__}: {error}"
            return HTTPStatus.BAD_REQUEST, {"error": printable(message), "place": printable(place)}

    def _path(self) -> str | None:
        """Returns the path after the token; answers a request that is not allowed with None."""
        try:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        except ValueError:  # such as http://[
            self._refuse(HTTPStatus.BAD_REQUEST, "This is not an address.")
            return None
        token, _, rest = path.removeprefix("/").partition("/")
        if not self._is_own_host() or not self._is_own_origin():
            self._refuse(HTTPStatus.FORBIDDEN, "This request comes from another site.")
            return None
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            message = (
                "Open the address that `pretrax explore` printed: this address lacks its token."
            )
            self._refuse(HTTPStatus.FORBIDDEN, message)
            return None
        return rest

    def _is_own_host(self) -> bool:
        """Returns whether the browser asked for this machine by its own name.

        The port may differ, since browsers leave out port 80, and ssh may forward another port.
        """
        if self.server.host not in LOCAL:
            return True  # other machines know this machine by any name
        return re.sub(r":\d+$", "", self.headers.get("Host", "")) in (*LOCAL, "[::1]")

    def _is_own_origin(self) -> bool:
        origin = self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if self.command != "POST" and self.headers.get("Sec-Fetch-Mode") == "navigate":
            return True  # a link to a page, for example in a terminal that is a web page itself
        is_own = origin is None or origin == f"http://{self.headers.get('Host')}"
        return is_own and site in ("same-origin", "none")

    def _json(self) -> dict | None:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,12}", length) or int(length) > MAX_REQUEST_BYTES:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Send at most {MAX_REQUEST_BYTES:,} bytes."
            )
            return None
        body = self.rfile.read(int(length))
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            self._refuse(HTTPStatus.BAD_REQUEST, "Send a JSON object.")
            return None
        return content

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True  # the body of the request may not be read
        body = json.dumps({"error": message}).encode()
        self._send(status, Content(body, "application/json"))

    def _send(self, status: HTTPStatus, answer: Content) -> None:
        self.send_response(status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, *_: Any) -> None:
        """Prints nothing, since requests contain the token."""


def kind_of(name: str) -> str:
    """Returns the content type of a file by its name."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: NamedTuples as objects, and None for infinite numbers."""
    if hasattr(value, "_asdict"):
        return {name: _plain(inner) for name, inner in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
