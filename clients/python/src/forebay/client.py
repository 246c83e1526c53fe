"""The client for programs with threads. A client may be shared by threads; each call uses a connection of its own."""

from __future__ import annotations

import functools
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import _calls
from ._calls import Call, Page, Parked, Stored
from ._server import CONNECT_WITHIN, IDLE_MAX, REPLY_WITHIN, Address, cannot_connect, pause_before_retry, result
from .errors import ForebayError, OutcomeUnknown

P = ParamSpec("P")
T = TypeVar("T")

#: The server closed a connection before it read the request.
CLOSED_WHILE_IDLE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(make)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(make(*args, **kwargs))

    return method


class Client:
    """Publishes, receives, settles and administers.

    ```python
    with Client("127.0.0.1:7070") as client:
        client.publish("emails", {"to": "ann@example.com"}, type="email.send")
    ```

    `server` is a host, a host and port, or a URL; by default the variable `FOREBAY_SERVER`, or this machine.
    A URL of https is reached over TLS. `tls` says which certificates are trusted; by default those of the file that the
    variable `FOREBAY_CA` names, or those that the system trusts.
    Calls that are safe to repeat are repeated for `retry_for` seconds while the server cannot be reached or is busy.
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
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
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
    ) -> Iterator[Stored]:
        """Every message of a stream from a position to its present end."""

        def page(after: int) -> Page[Stored]:
            return self.read(stream, from_seq=after, limit=1000, key=key, type=type)

        return _items(page, from_seq)

    def parked_all(self, stream: str, group: str, *, reason: str | None = None) -> Iterator[Parked]:
        """Every parked message (dead letter) of a group."""

        def page(after: int | None) -> Page[Parked]:
            return self.parked(stream, group, reason=reason, after=after, limit=1000)

        return _items(page, None)

    def call(self, call: Call[T]) -> T:
        """Carries out a call, again and again for `retry_for` seconds where that is safe and may help."""
        until = time.monotonic() + self.retry_for
        tries = 0
        while True:
            try:
                return result(self.address, call, *self._send(call))
            except ForebayError as error:
                pause = pause_before_retry(call, error, tries)
                if pause is None or time.monotonic() + pause > until:
                    raise
                tries += 1
                time.sleep(pause)

    def close(self) -> None:
        """Closes the connections. Calls that are on their way are not disturbed."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[Any]) -> tuple[int, bytes]:
        # A connection that was idle may have been closed by the server. Then a call that is safe to repeat is sent
        # again; for another call it would be unknown whether the server has seen it, so it gets a new connection.
        connection = self._take() if call.is_safe else None
        if connection is not None:
            try:
                return self._exchange(connection, call)
            except CLOSED_WHILE_IDLE:
                pass
        return self._exchange(self._connect(), call)

    def _exchange(self, connection: http.client.HTTPConnection, call: Call[Any]) -> tuple[int, bytes]:
        was_idle = connection.sock.gettimeout() != CONNECT_WITHIN
        connection.sock.settimeout(call.wait + REPLY_WITHIN)
        keep = False
        try:
            connection.request(call.method, self.address.prefix + call.path, call.encoded(), dict(self.address.headers))
            reply = connection.getresponse()
            body = reply.read()
            keep = not reply.will_close
            return reply.status, body
        except (http.client.HTTPException, OSError) as error:
            if was_idle and isinstance(error, CLOSED_WHILE_IDLE):
                raise
            raise OutcomeUnknown(f"the connection to {self.address} broke: {error!r}") from error
        finally:
            self._give_back(connection, keep)

    def _give_back(self, connection: http.client.HTTPConnection, keep: bool) -> None:
        with self._lock:
            if keep and not self._is_closed:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def _take(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_MAX:
                return connection
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        at, tls = self.address, self.address.tls
        connection: http.client.HTTPConnection
        if tls is None:
            connection = http.client.HTTPConnection(at.host, at.port, timeout=CONNECT_WITHIN)
        else:
            connection = http.client.HTTPSConnection(at.host, at.port, timeout=CONNECT_WITHIN, context=tls)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise cannot_connect(at, error) from error
        return connection


def _items(page: Callable[[Any], Page[T]], after: Any) -> Iterator[T]:
    while True:
        found = page(after)
        yield from found.items
        if found.next is None:
            return
        after = found.next
