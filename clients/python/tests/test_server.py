"""Addresses, lost connections and restarts."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest

from forebay import AsyncClient, Client, ConnectionFailed, Message, OutcomeUnknown
from forebay._server import Address
from forebay.testing import Server


@pytest.mark.parametrize(
    ("text", "host", "port", "prefix"),
    [
        ("example.com", "example.com", 7070, ""),
        ("example.com:80", "example.com", 80, ""),
        ("http://[::1]:9000", "::1", 9000, ""),
        ("https://example.com/forebay/", "example.com", 7070, "/forebay"),
    ],
)
def test_addresses(text: str, host: str, port: int, prefix: str) -> None:
    address = Address.parse(text, None, None)
    assert (address.host, address.port, address.prefix) == (host, port, prefix)
    assert (address.tls is not None) == text.startswith("https")


@pytest.mark.parametrize("text", ["ftp://example.com", "http://", "http:///x"])
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="a server is"):
        Address.parse(text, None, None)


def test_the_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Address.parse(None, "t", None).headers["authorization"] == "Bearer t"
    monkeypatch.setenv("FOREBAY_TOKEN", "u")
    assert Address.parse(None, None, None).headers["authorization"] == "Bearer u"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_is_away_is_named() -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}", retry_for=0.2) as client, pytest.raises(ConnectionFailed, match=str(port)):
        client.publish("s", 1)

    async def one() -> None:
        async with AsyncClient(f"127.0.0.1:{port}", retry_for=0) as client:
            await client.publish("s", 1)

    with pytest.raises(ConnectionFailed, match=str(port)):
        asyncio.run(one())


class Cutter:
    """Listens, reads a request and closes the connection without a reply."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self.requests += bool(connection.recv(65536))
            connection.close()


def test_a_call_is_repeated_only_if_that_is_safe() -> None:
    cutter = Cutter()
    with Client(f"127.0.0.1:{cutter.port}", retry_for=0.5) as client:
        with pytest.raises(OutcomeUnknown):
            client.delete_stream("s")
        assert cutter.requests == 1
        with pytest.raises(OutcomeUnknown):
            client.publish("s", 1)
        assert cutter.requests > 2


def test_publishing_goes_on_over_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, Client(server.url) as client:
        done = threading.Event()
        stored: list[int] = []

        def publish() -> None:
            while not done.is_set():
                stored.extend(one.seq for one in client.publish_batch("s", [Message(n) for n in range(10)]))

        producer = threading.Thread(target=publish)
        producer.start()
        for _ in range(3):
            time.sleep(0.3)
            server.kill()
            server.start()
        done.set()
        producer.join()
        # Nothing confirmed is missing, and nothing is there twice although replies were lost.
        assert stored == sorted(set(stored))
        found = [one.seq for one in client.read_all("s")]
        assert set(stored) == set(found) and len(found) == len(stored)


def test_a_cancelled_receive_leases_nothing(forebay_server: Server, stream: str) -> None:
    async def story() -> None:
        async with AsyncClient(forebay_server.url) as client:
            await client.create_group(stream, "g")
            waiting = asyncio.ensure_future(client.receive(stream, "g", wait=30))
            await asyncio.sleep(0.2)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await client.publish(stream, 1)
            [message] = await client.receive(stream, "g", wait=5)
            assert message.attempt == 1

    asyncio.run(story())
