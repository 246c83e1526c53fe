"""The client for asyncio, with the same methods as `Client`. HTTP/1.1 on asyncio's own streams."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import _calls
from ._calls import Call, Page, Parked, Stored
from ._server import CONNECT_WITHIN, IDLE_MAX, REPLY_WITHIN, Address, cannot_connect, pause_before_retry, result
from .errors import ForebayError, OutcomeUnknown

P = ParamSpec("P")
T = TypeVar("T")

HEAD_MAX = 64 * 1024


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(make)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(make(*args, **kwargs))

    return method


class AsyncClient:
    """`Client` for asyncio: `await client.publish("emails", {"to": "ann@example.com"})`.

    A call that is cancelled closes its connection. A receive that is cancelled leases nothing.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        retry_for: float = 30.0,
    ) -> None:
        self.address = Address.parse(server, token, tls)
        self.retry_for = retry_for
        self._idle: list[_Connection] = []
        self._is_closed = False

    publish = _method(_calls.publish)
    publish_batch = _method(_calls.publish_batch)
    read = _method(_calls.read)
    create_stream = _method(_calls.create_stream)
    change_stream = _method(_calls.change_stream)
    stream = _method(_calls.stream)
    streams = _method(_calls.streams)
    purge = _method(_calls.purge)
    delete_stream = _method(_calls.delete_stream)
    create_group = _method(_calls.create_group)
    change_group = _method(_calls.change_group)
    group = _method(_calls.group)
    groups = _method(_calls.groups)
    delete_group = _method(_calls.delete_group)
    pause = _method(_calls.pause)
    resume = _method(_calls.resume)
    reset = _method(_calls.reset)
    receive = _method(_calls.receive)
    ack = _method(_calls.ack)
    nack = _method(_calls.nack)
    extend = _method(_calls.extend)
    parked = _method(_calls.parked)
    parked_reasons = _method(_calls.parked_reasons)
    replay = _method(_calls.replay)
    discard = _method(_calls.discard)

    def read_all(
        self, stream: str, *, from_seq: int = 1, key: str | None = None, type: str | None = None
    ) -> AsyncIterator[Stored]:
        """Every message of a stream from a position to its present end."""

        def page(after: int) -> Awaitable[Page[Stored]]:
            return self.read(stream, from_seq=after, limit=1000, key=key, type=type)

        return _items(page, from_seq)

    def parked_all(self, stream: str, group: str, *, reason: str | None = None) -> AsyncIterator[Parked]:
        """Every parked message (dead letter) of a group."""

        def page(after: int | None) -> Awaitable[Page[Parked]]:
            return self.parked(stream, group, reason=reason, after=after, limit=1000)

        return _items(page, None)

    async def call(self, call: Call[T]) -> T:
        """Carries out a call, again and again for `retry_for` seconds where that is safe and may help."""
        until = time.monotonic() + self.retry_for
        tries = 0
        while True:
            try:
                return result(self.address, call, *await self._send(call))
            except ForebayError as error:
                pause = pause_before_retry(call, error, tries)
                if pause is None or time.monotonic() + pause > until:
                    raise
                tries += 1
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Closes the connections."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[Any]) -> tuple[int, bytes]:
        # As in `Client`: only a call that is safe to repeat may meet a connection that the server has closed.
        connection = self._take() if call.is_safe else None
        if connection is not None:
            try:
                return await self._exchange(connection, call)
            except _ClosedWhileIdle:
                pass  # The server had closed the connection before it saw the request.
        return await self._exchange(await self._connect(), call)

    async def _exchange(self, connection: _Connection, call: Call[Any]) -> tuple[int, bytes]:
        # Closed unless the exchange comes to its end, also if it is cancelled.
        keep = False
        try:
            within = call.wait + REPLY_WITHIN
            status, body, keep = await asyncio.wait_for(connection.exchange(self.address, call), within)
            return status, body
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            is_end = isinstance(error, (ConnectionError, asyncio.IncompleteReadError))
            if is_end and connection.is_used and not connection.got_bytes:
                raise _ClosedWhileIdle from error
            raise OutcomeUnknown(f"the connection to {self.address} broke: {error!r}") from error
        finally:
            if keep and not self._is_closed:
                connection.rest()
                self._idle.append(connection)
            else:
                connection.close()

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        at = self.address
        try:
            opening = asyncio.open_connection(at.host, at.port, ssl=at.tls, limit=HEAD_MAX)
            return _Connection(*await asyncio.wait_for(opening, CONNECT_WITHIN))
        except (OSError, asyncio.TimeoutError) as error:
            raise cannot_connect(at, error) from error


class _ClosedWhileIdle(Exception):
    pass


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._idle_since = 0.0
        self.is_used = False
        self.got_bytes = False

    def rest(self) -> None:
        self.is_used, self.got_bytes = True, False
        self._idle_since = time.monotonic()

    def is_fresh(self) -> bool:
        return time.monotonic() - self._idle_since < IDLE_MAX and not self._reader.at_eof()

    def close(self) -> None:
        self._writer.close()

    async def exchange(self, at: Address, call: Call[Any]) -> tuple[int, bytes, bool]:
        body = call.encoded()
        head = [f"{call.method} {at.prefix}{call.path} HTTP/1.1", f"content-length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in at.headers.items()]
        self._writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await self._writer.drain()
        status, headers = await self._head()
        # Interim replies announce the real one.
        while 100 <= status < 200:
            status, headers = await self._head()
        return status, await self._body(status, headers), headers.get("connection", "").lower() != "close"

    async def _head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.got_bytes = True
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(f"not a reply of HTTP/1: {lines[0][:80]!r}")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    async def _body(self, status: int, headers: dict[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks()
        return await self._reader.readexactly(int(headers.get("content-length", "0")))

    async def _chunks(self) -> bytes:
        pieces = []
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        # Trailers, up to the empty line.
        while (await self._reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        return b"".join(pieces)


async def _items(page: Callable[[Any], Awaitable[Page[T]]], after: Any) -> AsyncIterator[T]:
    while True:
        found = await page(after)
        for item in found.items:
            yield item
        if found.next is None:
            return
        after = found.next
