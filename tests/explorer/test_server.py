"""The server of `pretrax explore`: which requests it accepts, and its responses."""

import contextlib
import http.client
import json
import operator
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

import pytest

from pretrax.explorer.server import MAX_REQUEST_BYTES, Content, Server, Site
from tests.inference.runs import write_run
from tests.refusals import refuses


def add(sent: dict) -> dict:
    return {"sum": sent["a"] + sent["b"]}


def leave(sent: dict) -> None:
    sys.exit("bye")


@pytest.fixture(scope="module")
def server():
    calls = {"add": add, "leave": leave, "broken_inside": operator.itemgetter("b")}
    site = Site(lambda path, query: Content(b"hello") if path == "" else None, calls)
    with Server(site) as running:
        running.begin()
        yield running
        running.shutdown()


def ask(server, method="GET", path=None, body=None, **headers):
    """Returns (status, headers, content) of a request, with the server's own token by default."""
    url = urllib.parse.urlsplit(server.address)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
    path = url.path if path is None else path
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers, content


def call(server, body, name="add", **headers):
    path = urllib.parse.urlsplit(server.address).path
    status, _, content = ask(server, "POST", f"{path}api/{name}", body, **headers)
    return status, json.loads(content)


def test_page_and_call_are_served(server):
    status, headers, content = ask(server)
    assert (status, content) == (200, b"hello")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert call(server, json.dumps({"a": 1, "b": 2})) == (200, {"sum": 3})


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/api/add", "//", "/%00/"])
def test_address_without_the_token_is_forbidden(server, path):
    assert ask(server, path=path)[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_cross_site_request_is_forbidden(server, headers):
    assert call(server, json.dumps({"a": 1, "b": 2}), **headers)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:9000"])
def test_host_may_have_a_forwarded_port(server, host):
    body = json.dumps({"a": 1, "b": 2})
    assert call(server, body, Host=host, Origin=f"http://{host}")[0] == 200
    assert call(server, body, Host=host, Origin="http://localhost:3000")[0] == 403


def test_server_on_all_addresses_uses_the_host_name(server):
    with Server(server.site, host="0.0.0.0") as other:
        assert urllib.parse.urlsplit(other.address).hostname == socket.gethostname().lower()


def test_slow_client_is_disconnected(server, monkeypatch):
    assert server.RequestHandlerClass.timeout is not None
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.1)
    with socket.create_connection(server.server_address[:2], timeout=10) as client:
        client.sendall(b"POST /")
        assert client.recv(1) == b""


def test_cross_site_link_may_open_a_page_but_not_call(server):
    site = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert ask(server, **site)[0] == 200
    assert call(server, "{}", **site)[0] == 403


def test_call_accepts_only_a_json_object_of_limited_size(server):
    for body in "", "[1]", "{", "null", "[" * 100_000:
        assert call(server, body)[0] == 400
    status, content = call(server, "", Content_Length=str(MAX_REQUEST_BYTES + 1))
    assert status == 413 and f"{MAX_REQUEST_BYTES:,}" in content["error"]
    assert call(server, "", Content_Length="9" * 5000)[0] == 413
    assert call(server, "{}", name="other")[0] == 404
    assert ask(server, path=urllib.parse.urlsplit(server.address).path + "missing")[0] == 404


def test_connection_closes_after_a_forbidden_request(server):
    url = urllib.parse.urlsplit(server.address)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
    connection.request("POST", "/wrong/api/add", json.dumps({"a": 1, "b": 2}))
    refused = connection.getresponse()
    assert refused.status == 403 and refused.headers["Connection"] == "close"
    refused.read()
    connection.request("GET", url.path)  # on a new connection, since the server closed the first
    assert connection.getresponse().read() == b"hello"
    connection.close()


def test_malformed_address_gives_status_400(server, capsys):
    url = urllib.parse.urlsplit(server.address)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
    connection.putrequest("GET", "http://[x/", skip_host=True)
    connection.putheader("Host", url.netloc)
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()
    assert capsys.readouterr().err == ""


def test_get_requests_cannot_call(server):
    path = urllib.parse.urlsplit(server.address).path
    assert ask(server, path=f"{path}api/add?a=1&b=2")[0] == 404


def test_error_of_a_call_is_returned(server, capsys):
    status, content = call(server, json.dumps({"a": 1}))
    assert status == 400 and content["error"] == "KeyError: 'b'"
    assert content["place"].startswith(__file__)
    assert capsys.readouterr().err == ""


def test_error_within_pretrax_is_returned_and_printed(server, capsys):
    status, content = call(server, "{}", name="broken_inside")
    assert status == 400 and (content["error"], content["place"]) == ("KeyError: 'b'", "")
    assert "KeyError" in capsys.readouterr().err


def test_system_exit_of_a_call_is_returned(server):
    status, content = call(server, "{}", name="leave")
    assert status == 400 and content["error"] == "SystemExit: bye"


def test_unusable_port_is_rejected(server):
    for port in server.server_address[1], 70_000:
        with refuses(ValueError, "--port", port):
            Server(server.site, port)
    with refuses(ValueError, "--host=203.0.113.1"):  # an address of no machine
        Server(server.site, host="203.0.113.1")


def test_servers_have_different_tokens(server):
    with Server(server.site) as other:
        assert len(other.token) >= 32 and other.token != server.token
        assert other.server_address[0] == "127.0.0.1"


@pytest.mark.slow
def test_ctrl_c_ends_the_process_while_threads_compute(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    write_run(tmp_path / "runs" / "mine", "decoder", "causal_lm")
    command = [sys.executable, "-m", "pretrax", "explore", "--no_browser"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    url = urllib.parse.urlsplit(re.search(r"http\S+", running.stdout.readline())[0])
    body = json.dumps({"run": "runs/mine", "mode": "continue", "text": "a", "max_new": 30})
    answered = threading.Semaphore(0)

    def ask_again_and_again() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                connection = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
                connection.request("POST", f"{url.path}api/answer", body)
                connection.getresponse().read()
                answered.release()

    asking = [threading.Thread(target=ask_again_and_again) for _ in range(4)]
    for thread in asking:
        thread.start()
    for _ in range(8):
        assert answered.acquire(timeout=300)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == 130
    for thread in asking:
        thread.join()
