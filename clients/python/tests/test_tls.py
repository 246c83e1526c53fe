"""TLS: which certificates are trusted, and what a client says of another one. A server that is not Forebay."""

from __future__ import annotations

import asyncio
import http.server
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import AsyncClient, CertificateRejected, Client, NotFound, Problem, Worker
from forebay.testing import Server


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return make_certificate(tmp_path, "server", "localhost")


def make_certificate(folder: Path, name: str, host: str) -> Path:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [Server().program, "cert", "self-signed", "--name", host, "--cert", str(cert), "--key", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return cert


@pytest.fixture
def secure(certificate: Path) -> Iterator[str]:
    """The URL of a server with TLS."""
    server = Server(options=["--tls-cert", str(certificate), "--tls-key", str(certificate.with_suffix(".key"))])
    with server:
        yield f"https://localhost:{server.port}"


def test_the_certificates_are_those_of_a_variable_or_an_argument(
    secure: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(secure, tls=ssl.create_default_context(cafile=certificate)) as client:
        assert client.publish("s", 1).seq == 1
    monkeypatch.setenv("FOREBAY_CA", str(certificate))
    with Client(secure) as client:
        assert client.publish("s", 2).seq == 2

    async def story() -> None:
        async with AsyncClient(secure) as client:
            assert (await client.publish("s", 3)).seq == 3

    asyncio.run(story())
    worker = Worker("s", "g", server=secure, ensure_group={})
    worker.on_any(lambda job: None)
    assert worker.run(idle=0.3).acked == 3


def test_a_certificate_that_is_not_trusted_is_refused_at_once(
    secure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_CA", raising=False)
    begin = time.monotonic()
    with pytest.raises(CertificateRejected, match=r"invalid certificate: self.signed certificate. FOREBAY_CA names"):
        Client(secure).publish("s", 1)

    async def one() -> None:
        async with AsyncClient(secure) as client:
            await client.publish("s", 1)

    with pytest.raises(CertificateRejected, match="FOREBAY_CA"):
        asyncio.run(one())
    worker = Worker("s", "g", server=secure, ensure_group={})
    worker.on_any(lambda job: None)
    with pytest.raises(CertificateRejected, match="FOREBAY_CA"):
        worker.run()
    # This one is for another name, so other authorities would not help.
    monkeypatch.setenv("FOREBAY_CA", str(tmp_path / "server.pem"))
    with pytest.raises(CertificateRejected, match=r"not valid for '127\.0\.0\.1'$"):
        Client(secure.replace("localhost", "127.0.0.1")).publish("s", 1)
    assert time.monotonic() - begin < 5


def test_a_file_without_certificates_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("missing.pem", "empty.pem"):
        (tmp_path / "empty.pem").write_text("")
        monkeypatch.setenv("FOREBAY_CA", str(tmp_path / name))
        with pytest.raises(ValueError, match=f"FOREBAY_CA must name a file with certificates.*{name}"):
            Client("https://localhost")
        Client("http://localhost")


class Page(http.server.BaseHTTPRequestHandler):
    """Answers like the SQS API, and with a page of a web server."""

    def do_GET(self) -> None:
        status, body = (200, b"<html>") if self.path.startswith("/streams/page") else (404, b"<Unknown/>\n")
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_server_that_is_not_forebay_is_named() -> None:
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{other.server_address[1]}"
    with Client(address) as client:
        for stream, status in (("page", 200), ("orders", 404)):
            with pytest.raises(Problem) as refused:
                client.stream(stream)
            assert str(refused.value).startswith(
                f"the server at {address} is not the HTTP API of Forebay, which is on port 7070"
            )
            assert refused.value.status == status and not isinstance(refused.value, NotFound)
    other.shutdown()
    other.server_close()
