"""Every call of the API, declared once: what is sent, what the reply means, and whether it may be sent twice.

A call is data. `Client` and `AsyncClient` carry calls out, each in its own way, and take their methods from here.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

T = TypeVar("T")

#: A time: seconds, a `timedelta`, or the server's own form, as in "250ms" or "7d".
Duration = float | int | timedelta | str
#: Settings of streams and groups, as docs/reference/stream-settings.md and group-settings.md list them.
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its reply is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Any = None
    #: Sending it twice has the same effect as sending it once.
    is_safe: bool = True
    #: For how many seconds the server may keep the reply back on purpose.
    wait: float = 0.0

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass
class Message:
    """A message to publish.

    `body` is text (`str`), bytes, or any other JSON value, and is received as the same. A message without an `id` is
    given one, so that a publish whose reply was lost can be repeated without storing it twice.
    """

    body: Any = None
    id: str | None = None
    type: str | None = None
    key: str | bytes | None = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict)
    schema: int | None = None
    priority: int | None = None
    delay: Duration | None = None
    deliver_at: datetime | None = None
    ttl: Duration | None = None
    #: The media type of the body, if it does not follow from its Python type, as in "image/png" for bytes.
    content_type: str | None = None


@dataclass(frozen=True)
class Published:
    """The place of a message that is stored and synced."""

    seq: int
    id: str | None
    #: The server has had a message with this id; `seq` is the place of that one.
    duplicate: bool
    #: The place in the log of the whole server.
    log_position: int | None = None


@dataclass(frozen=True)
class Stored:
    """A message that was read from a stream."""

    seq: int
    published_at: datetime
    body: Any
    id: str | None = None
    type: str | None = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    schema: int | None = None
    priority: int = 0
    expires_at: datetime | None = None
    #: The media type of the body, if it does not follow from its Python type.
    content_type: str | None = None
    #: A key that is not UTF-8, in place of `key`.
    key_bytes: bytes | None = None
    #: Headers whose values are not UTF-8. They are not in `headers`.
    headers_bytes: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Received(Stored):
    """A message that this client holds a lease on, until the deadline or until it settles it."""

    lease: str = ""
    attempt: int = 1
    #: The message was delivered before in this group, also if that did not count as an attempt.
    redelivered: bool = False
    deadline: datetime | None = None


@dataclass(frozen=True)
class Parked:
    """A dead letter: a message that is set aside in its group, with the reason."""

    seq: int
    #: `None` if the server cannot read the message because its data folder is damaged.
    message: Stored | None
    attempts: int
    reason: str | None
    parked_at: datetime
    #: The last failures, the oldest first.
    history: tuple[Mapping[str, Any], ...]
    #: The consumer that had the message last.
    consumer: str | None = None


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list, and where the next part begins. `next` is `None` on the last page."""

    items: tuple[T, ...]
    next: Any


def duration(value: Duration) -> str:
    """The server's form of a time."""
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < 1e10:
        raise ValueError(f"a duration must be between 0 and 10^10 seconds. value=`{value}`")
    return f"{round(seconds * 1000)}ms"


def _time(text: str | None) -> datetime | None:
    # Python 3.10 does not know the Z.
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))


def _time_of(value: datetime) -> str:
    if value.tzinfo is None:
        raise ValueError("`deliver_at` must have a time zone, as in datetime.now(timezone.utc)")
    return value.astimezone(timezone.utc).isoformat()


def _body(fields: Mapping[str, Any]) -> Any:
    if "body_base64" in fields:
        return base64.b64decode(fields["body_base64"])
    return fields["body_text"] if "body_text" in fields else fields.get("body")


def _stored(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seq": fields["seq"],
        "published_at": _time(fields["published_at"]),
        "body": _body(fields),
        "id": fields.get("id"),
        "type": fields.get("type"),
        "key": fields.get("key"),
        "headers": fields.get("headers") or {},
        "schema": fields.get("schema"),
        "priority": fields.get("priority") or 0,
        "expires_at": _time(fields.get("expires_at")),
        "content_type": fields.get("content_type"),
        "key_bytes": base64.b64decode(fields["key_base64"]) if "key_base64" in fields else None,
        "headers_bytes": {name: base64.b64decode(text) for name, text in fields.get("headers_base64", {}).items()},
    }


def _received(fields: Mapping[str, Any]) -> Received:
    return Received(
        **_stored(fields),
        lease=fields["lease"],
        attempt=fields["attempt"],
        redelivered=fields.get("redelivered", False),
        deadline=_time(fields["deadline"]),
    )


def _parked(fields: Mapping[str, Any]) -> Parked:
    parked_at = _time(fields["parked_at"])
    assert parked_at is not None
    history = tuple(fields.get("history") or ())
    message = None if fields["message"] is None else Stored(**_stored(fields["message"]))
    reason, consumer = fields.get("reason"), fields.get("consumer")
    return Parked(fields["seq"], message, fields["attempts"], reason, parked_at, history, consumer)


def _to_send(message: Message, id: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if isinstance(message.body, (bytes, bytearray, memoryview)):
        fields["body_base64"] = base64.b64encode(message.body).decode()
    elif isinstance(message.body, str):
        fields["body_text"] = message.body
    else:
        fields["body"] = message.body
    if id is not None:
        fields["id"] = id
    for name in ("type", "schema", "priority", "content_type"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if isinstance(message.key, bytes):
        fields["key_base64"] = base64.b64encode(message.key).decode()
    elif message.key is not None:
        fields["key"] = message.key
    for name, value in message.headers.items():
        if isinstance(value, bytes):
            fields.setdefault("headers_base64", {})[name] = base64.b64encode(value).decode()
        else:
            fields.setdefault("headers", {})[name] = value
    if message.delay is not None:
        fields["delay"] = duration(message.delay)
    if message.deliver_at is not None:
        fields["deliver_at"] = _time_of(message.deliver_at)
    if message.ttl is not None:
        fields["ttl"] = duration(message.ttl)
    return fields


def _name(text: str) -> str:
    return quote(text, safe="")


def _stream(stream: str, *rest: str) -> str:
    return "/".join(["/streams", _name(stream), *rest])


def _group(stream: str, group: str, *rest: str) -> str:
    return "/".join(["/subscriptions", _name(stream), _name(group), *rest])


def _query(path: str, **parameters: Any) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def _as_it_is(reply: Any) -> Any:
    return reply


def _nothing(_: Any) -> None:
    return None


def _settings(given: Settings | None, more: Mapping[str, Any]) -> dict[str, Any]:
    both = {**(given or {}), **more}
    return {name: duration(value) if isinstance(value, timedelta) else value for name, value in both.items()}


# Publishing and reading.


def publish(
    stream: str,
    body: Any = None,
    *,
    id: str | None = None,
    type: str | None = None,
    key: str | bytes | None = None,
    headers: Mapping[str, str | bytes] | None = None,
    schema: int | None = None,
    priority: int | None = None,
    delay: Duration | None = None,
    deliver_at: datetime | None = None,
    ttl: Duration | None = None,
    content_type: str | None = None,
) -> Call[Published]:
    """Stores one message, and returns when it is synced. The server creates a stream that does not exist."""
    message = Message(body, id, type, key, headers or {}, schema, priority, delay, deliver_at, ttl, content_type)
    many = publish_batch(stream, [message])
    return Call(many.method, many.path, lambda reply: many.read(reply)[0], many.body)


def publish_batch(
    stream: str, messages: Iterable[Message], *, expect_last_seq: int | None = None
) -> Call[list[Published]]:
    """Stores messages of one stream, all or none of them.

    With `expect_last_seq` only if the stream ends at that position; otherwise `Conflict` of kind `wrong-last-seq`.
    """
    sent = [_to_send(message, message.id or uuid.uuid4().hex) for message in messages]
    body: dict[str, Any] = {"messages": sent}
    if expect_last_seq is not None:
        body["expect_last_seq"] = expect_last_seq

    def read(reply: Any) -> list[Published]:
        given = ((one["seq"], one.get("id"), one["duplicate"], one.get("log_position")) for one in reply["results"])
        return [Published(*one) for one in given]

    # After a lost reply the end of the stream has moved, so a repeated expectation would be refused.
    return Call("POST", _stream(stream, "messages"), read, body, is_safe=expect_last_seq is None)


def read(
    stream: str,
    *,
    from_seq: int | None = None,
    limit: int | None = None,
    key: str | None = None,
    type: str | None = None,
) -> Call[Page[Stored]]:
    """Messages of a stream, without a group. Changes nothing."""
    path = _query(_stream(stream, "messages"), **{"from": from_seq}, limit=limit, key=key, type=type)

    def page(reply: Any) -> Page[Stored]:
        return Page(tuple(Stored(**_stored(one)) for one in reply["messages"]), reply["next"])

    return Call("GET", path, page)


# Streams and groups.


def create_stream(stream: str, settings: Settings | None = None, **more: Any) -> Call[dict[str, Any]]:
    """Creates a stream. One that exists with other settings raises `Conflict` of kind `settings-differ`."""
    return Call("PUT", _stream(stream), _as_it_is, _settings(settings, more))


def change_stream(stream: str, settings: Settings | None = None, **more: Any) -> Call[dict[str, Any]]:
    """Changes settings. Those that are left out keep their values; `None` removes a limit."""
    return Call("PATCH", _stream(stream), _as_it_is, _settings(settings, more))


def stream(stream: str) -> Call[dict[str, Any]]:
    """Settings and statistics of a stream."""
    return Call("GET", _stream(stream), _as_it_is)


def streams(*, after: str | None = None, limit: int | None = None) -> Call[Page[dict[str, Any]]]:
    """All streams, a page at a time."""
    path = _query("/streams", after=after, limit=limit)
    return Call("GET", path, lambda reply: Page(tuple(reply["streams"]), reply["next"]))


def purge(stream: str, *, parked: bool = False) -> Call[int]:
    """Deletes the messages of a stream, with `parked` its dead letters too. Returns how many."""
    return Call("POST", _stream(stream, "purge"), lambda reply: int(reply["purged"]), {"parked": parked}, is_safe=False)


def delete_stream(stream: str, *, force: bool = False) -> Call[None]:
    """Deletes a stream with its groups; with `force` also if they have consumers."""
    path = _query(_stream(stream), force="true" if force else None)
    return Call("DELETE", path, _nothing, is_safe=False)


def create_group(stream: str, group: str, settings: Settings | None = None, **more: Any) -> Call[dict[str, Any]]:
    """Creates a group, and its stream if that does not exist. Raises `Conflict` if it exists with other settings."""
    return Call("PUT", _group(stream, group), _as_it_is, _settings(settings, more))


def change_group(stream: str, group: str, settings: Settings | None = None, **more: Any) -> Call[dict[str, Any]]:
    """Changes settings of a group. Those that are left out keep their values."""
    return Call("PATCH", _group(stream, group), _as_it_is, _settings(settings, more))


def group(stream: str, group: str) -> Call[dict[str, Any]]:
    """Settings and statistics of a group."""
    return Call("GET", _group(stream, group), _as_it_is)


def groups(
    stream: str | None = None, *, after: str | None = None, limit: int | None = None
) -> Call[Page[dict[str, Any]]]:
    """The groups of a stream, or of all streams, a page at a time."""
    path = "/subscriptions" if stream is None else f"/subscriptions/{_name(stream)}"
    path = _query(path, after=after, limit=limit)
    return Call("GET", path, lambda reply: Page(tuple(reply["subscriptions"]), reply["next"]))


def delete_group(stream: str, group: str) -> Call[None]:
    """Deletes a group with its parked messages."""
    return Call("DELETE", _group(stream, group), _nothing, is_safe=False)


def pause(stream: str, group: str) -> Call[None]:
    """Stops delivery to the group until `resume`."""
    return Call("POST", _group(stream, group, "pause"), _nothing)


def resume(stream: str, group: str) -> Call[None]:
    """Starts delivery again."""
    return Call("POST", _group(stream, group, "resume"), _nothing)


def reset(stream: str, group: str, to: str | int | datetime, *, parked: str | None = None) -> Call[dict[str, Any]]:
    """Moves the progress of a group to `"beginning"`, `"end"`, a position or a time."""
    place: Any = {"seq": to} if isinstance(to, int) else {"time": _time_of(to)} if isinstance(to, datetime) else to
    body = {"to": place} if parked is None else {"to": place, "parked": parked}
    return Call("POST", _group(stream, group, "reset"), _as_it_is, body, is_safe=False)


# Receiving and settling.


def receive(
    stream: str,
    group: str,
    *,
    max: int = 1,
    wait: Duration = 0,
    timeout: Duration | None = None,
    consumer: str | None = None,
) -> Call[list[Received]]:
    """Leases up to `max` messages. Waits for the first one at most `wait`.

    `timeout` is the length of the leases, by default the group's `message_timeout`.
    """
    body: dict[str, Any] = {"max": max, "wait": duration(wait)}
    if timeout is not None:
        body["timeout"] = duration(timeout)
    if consumer is not None:
        body["consumer"] = consumer
    path = _group(stream, group, "receive")
    # Messages of a reply that does not arrive go back to the group.
    return Call("POST", path, lambda reply: [_received(one) for one in reply["messages"]], body, wait=seconds(wait))


Leases = Received | str | Sequence[Received | str]


def _leases(given: Leases) -> list[str]:
    many = [given] if isinstance(given, (Received, str)) else given
    return [one.lease if isinstance(one, Received) else one for one in many]


def _outcomes(reply: Any) -> list[str]:
    return [one["outcome"] for one in reply["results"]]


def ack(stream: str, group: str, leases: Leases) -> Call[list[str]]:
    """Settles messages as processed. The outcome of each is `acked`, or `not_yours` if its lease has ended."""
    return Call("POST", _group(stream, group, "ack"), _outcomes, {"leases": _leases(leases)})


def nack(
    stream: str,
    group: str,
    leases: Leases,
    *,
    action: str | Mapping[str, str] = "auto",
    delay: Duration | None = None,
    reason: str | None = None,
    rest: Duration | None = None,
) -> Call[list[str]]:
    """Settles messages as not processed: `retry`, `park`, `skip`, `return`, or `{"move": "other-stream"}`."""
    body: dict[str, Any] = {"leases": _leases(leases), "action": action}
    if delay is not None:
        body["delay"] = duration(delay)
    if reason is not None:
        body["reason"] = reason
    if rest is not None:
        body["rest"] = duration(rest)
    return Call("POST", _group(stream, group, "nack"), _outcomes, body)


def extend(stream: str, group: str, leases: Leases, by: Duration) -> Call[list[str]]:
    """Gives leases a new deadline, this far from now. The outcome of each is `extended` or `not_yours`."""
    return Call("POST", _group(stream, group, "extend"), _outcomes, {"leases": _leases(leases), "by": duration(by)})


# Dead letters.


def parked(
    stream: str, group: str, *, reason: str | None = None, after: int | None = None, limit: int | None = None
) -> Call[Page[Parked]]:
    """The parked messages (dead letters) of a group, a page at a time."""
    path = _query(_group(stream, group, "parked"), reason=reason, after=after, limit=limit)
    return Call("GET", path, lambda reply: Page(tuple(_parked(one) for one in reply["parked"]), reply["next"]))


def parked_reasons(stream: str, group: str) -> Call[dict[str, int]]:
    """How many messages are parked for each reason."""

    def read(reply: Any) -> dict[str, int]:
        return {one["reason"]: one["count"] for one in reply["reasons"]}

    return Call("GET", _group(stream, group, "parked", "reasons"), read)


def _triage(
    verb: str, stream: str, group: str, seqs: Iterable[int] | None, filter: Mapping[str, str] | None, everything: bool
) -> Call[int]:
    if [seqs is not None, filter is not None, everything].count(True) != 1:
        raise ValueError("give one of `seqs`, `filter` and `all=True`")
    selection: dict[str, Any] = {"all": True} if everything else {"filter": filter} if filter is not None else {}
    if seqs is not None:
        selection = {"seqs": list(seqs)}
    path = _group(stream, group, "parked", verb)
    return Call("POST", path, lambda reply: int(reply["matched"]), selection, is_safe=False)


def replay(
    stream: str,
    group: str,
    *,
    seqs: Iterable[int] | None = None,
    filter: Mapping[str, str] | None = None,
    all: bool = False,
) -> Call[int]:
    """Offers parked messages again, and returns how many are selected. The work goes on as a job of the server."""
    return _triage("replay", stream, group, seqs, filter, all)


def discard(
    stream: str,
    group: str,
    *,
    seqs: Iterable[int] | None = None,
    filter: Mapping[str, str] | None = None,
    all: bool = False,
) -> Call[int]:
    """Deletes parked messages, and returns how many are selected. The work goes on as a job of the server."""
    return _triage("discard", stream, group, seqs, filter, all)


def seconds(value: Duration) -> float:
    """A time in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        units = {"us": 0.000001, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
        number = value.rstrip("dhmsu")
        if not number.isdigit() or value[len(number) :] not in units:
            raise ValueError(f"a duration is a whole number and us, ms, s, m, h or d. value=`{value}`")
        return int(number) * units[value[len(number) :]]
    return float(value)
