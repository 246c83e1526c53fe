"""Every call, with both clients, against a real server."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from forebay import AsyncClient, Busy, Client, Conflict, Message, NotFound, Problem
from forebay.testing import Server


class Waited:
    """An `AsyncClient` that is used like a `Client`, so that one set of tests serves both."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(url)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            made = attribute(*args, **kwargs)
            return self._loop.run_until_complete(_all(made) if hasattr(made, "__aiter__") else made)

        return method

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, forebay_server: Server) -> Any:
    made = Client(forebay_server.url) if request.param == "threads" else Waited(forebay_server.url)
    yield made
    made.close()


def test_a_message_goes_through(client: Any, stream: str) -> None:
    client.create_group(stream, "g")
    sent = client.publish(
        stream, {"to": "ann"}, id="m-1", type="email.send", key="u/1", headers={"lang": "en"}, priority=5, schema=2
    )
    assert (sent.seq, sent.id, sent.duplicate) == (1, "m-1", False)
    assert client.publish(stream, {"to": "ann"}, id="m-1").duplicate

    [message] = client.receive(stream, "g", max=10, wait=5, timeout=30, consumer="me")
    assert (message.seq, message.id, message.type, message.key) == (1, "m-1", "email.send", "u/1")
    assert (message.body, message.headers, message.priority) == ({"to": "ann"}, {"lang": "en"}, 5)
    assert (message.schema, message.attempt) == (2, 1)
    left = message.deadline - datetime.now(timezone.utc)
    assert timedelta(seconds=20) < left < timedelta(seconds=31)
    assert client.extend(stream, "g", message, by=60) == ["extended"]
    assert client.ack(stream, "g", [message]) == ["acked"]
    assert client.ack(stream, "g", message.lease) == ["not_yours"]
    assert client.group(stream, "g")["last_processed_seq"] == 1


@pytest.mark.parametrize(
    "body", [None, 0, "", "text", "größe", '{"a": 1}', "42", [1, {"a": None}], {"a": 1.5}, b"", b"\x00\xff"]
)
def test_bodies_come_back_as_they_were(client: Any, stream: str, body: Any) -> None:
    client.publish(stream, body)
    [message] = client.read_all(stream)
    assert message.body == body
    assert type(message.body) is type(body)


@pytest.mark.parametrize("body", ["hello", '{"a": 1}', ""])
def test_text_is_the_same_text_for_other_clients(forebay_server: Server, client: Any, stream: str, body: str) -> None:
    client.publish(stream, body)
    path = f"{forebay_server.url}/streams/{quote(stream, safe='')}/messages"
    with urlopen(path) as reply:
        [message] = json.load(reply)["messages"]
    assert (message["body_text"], "body" in message) == (body, False)


def test_text_of_other_clients_is_received_as_text(forebay_server: Server, client: Any, stream: str) -> None:
    sent = json.dumps({"messages": [{"body_text": "[1]"}]}).encode()
    path = f"{forebay_server.url}/streams/{quote(stream, safe='')}/messages"
    urlopen(Request(path, data=sent, headers={"content-type": "application/json"})).close()
    assert [message.body for message in client.read_all(stream)] == ["[1]"]


def test_a_delivery_says_whether_it_is_the_first(client: Any, stream: str) -> None:
    client.create_group(stream, "g")
    client.publish(stream, 1)
    [first] = client.receive(stream, "g", wait=5)
    assert client.nack(stream, "g", first, action="return") == ["returned"]
    [again] = client.receive(stream, "g", wait=5)
    assert (first.redelivered, again.redelivered) == (False, True)
    assert (first.attempt, again.attempt) == (1, 1), "a return costs no attempt"


def test_keys_and_headers_may_be_bytes_and_bodies_have_types(client: Any, stream: str) -> None:
    client.create_group(stream, "g")
    sent = client.publish(
        stream, b"\x89PNG", key=b"\xff\x00", headers={"raw": b"\xfe", "plain": "a"}, content_type="image/png"
    )
    assert sent.log_position >= 1
    client.publish(stream, "a,b", content_type="text/csv", key=b"text", headers={"also": b"text"})
    for messages in (client.read_all(stream), client.receive(stream, "g", max=2, wait=5)):
        image, table = messages
        assert (image.body, image.content_type, image.key, image.key_bytes) == (
            b"\x89PNG",
            "image/png",
            None,
            b"\xff\x00",
        )
        assert (image.headers, image.headers_bytes) == ({"plain": "a"}, {"raw": b"\xfe"})
        assert (table.body, table.content_type, table.key, table.key_bytes) == ("a,b", "text/csv", "text", None)
        assert (table.headers, table.headers_bytes) == ({"also": "text"}, {})


def test_names_may_have_any_letters(client: Any, fresh: Any) -> None:
    stream = fresh("größe & co?")
    client.create_group(stream, "a b%")
    client.publish(stream, 1)
    [message] = client.receive(stream, "a b%", wait=5)
    assert client.ack(stream, "a b%", message) == ["acked"]


def test_a_batch_is_stored_whole_or_not_at_all(client: Any, stream: str) -> None:
    stored = client.publish_batch(stream, [Message(n) for n in range(5)])
    assert [one.seq for one in stored] == [1, 2, 3, 4, 5]
    assert all(one.id for one in stored)
    with pytest.raises(Conflict) as refused:
        client.publish_batch(stream, [Message("late")], expect_last_seq=4)
    assert (refused.value.kind, refused.value.last_seq) == ("wrong-last-seq", 5)
    assert [one.body for one in client.read_all(stream, from_seq=2)] == [1, 2, 3, 4]


def test_pages_follow_each_other(client: Any, stream: str) -> None:
    client.publish_batch(stream, [Message(n, key="even" if n % 2 == 0 else "odd") for n in range(2500)])
    assert [one.seq for one in client.read_all(stream)] == list(range(1, 2501))
    assert len(list(client.read_all(stream, key="even"))) == 1250
    assert len(client.read(stream, limit=10).items) == 10


def test_what_is_nacked_is_parked_and_replayed(client: Any, stream: str) -> None:
    client.create_group(stream, "g", max_retries=1, backoff={"min": "1ms", "max": "1ms"})
    client.publish(stream, "poison")
    [message] = client.receive(stream, "g", wait=5)
    assert client.nack(stream, "g", message, reason="first") == ["retrying"]
    [message] = client.receive(stream, "g", wait=5)
    assert message.attempt == 2
    assert client.nack(stream, "g", message, reason="second") == ["parked"]

    [dead] = client.parked_all(stream, "g")
    assert (dead.seq, dead.reason, dead.attempts, dead.message.body) == (1, "second", 2, "poison")
    assert [one["reason"] for one in dead.history] == ["first", "second"]
    assert client.parked_reasons(stream, "g") == {"second": 1}
    assert client.replay(stream, "g", filter={"reason": "second"}) == 1
    [message] = client.receive(stream, "g", wait=5)
    assert client.nack(stream, "g", message, action="skip") == ["skipped"]


def test_a_delay_is_kept(client: Any, stream: str) -> None:
    client.create_group(stream, "g")
    client.publish(stream, "later", delay=0.3)
    client.publish(stream, "soon", deliver_at=datetime.now(timezone.utc) - timedelta(seconds=1))
    [first] = client.receive(stream, "g", max=5)
    assert first.body == "soon"
    [second] = client.receive(stream, "g", max=5, wait=5)
    assert second.body == "later"


def test_operators_calls(client: Any, stream: str) -> None:
    assert client.create_stream(stream, dedupe_window=timedelta(hours=1))["settings"]["dedupe_window"] == "1h"
    assert client.change_stream(stream, limits={"max_messages": 3})["settings"]["limits"]["max_messages"] == 3
    client.create_group(stream, "g", {"max_retries": 3})
    assert client.change_group(stream, "g", max_retries=4)["settings"]["max_retries"] == 4
    client.pause(stream, "g")
    client.publish(stream, 1)
    assert client.receive(stream, "g") == []
    client.resume(stream, "g")
    assert len(client.receive(stream, "g", wait=5)) == 1
    client.reset(stream, "g", "beginning")
    assert len(client.receive(stream, "g", wait=5)) == 1
    assert client.purge(stream) >= 0
    assert [one["group"] for one in client.groups(stream).items] == ["g"]
    assert stream in {one["stream"] for one in client.streams(limit=1000).items}
    assert client.stream(stream)["groups"] == 1
    client.delete_group(stream, "g")
    with pytest.raises(NotFound):
        client.group(stream, "g")
    client.delete_stream(stream)
    with pytest.raises(NotFound):
        client.stream(stream)


def test_refusals_name_the_field(client: Any, stream: str) -> None:
    with pytest.raises(Problem) as refused:
        client.create_group(stream, "g", max_retries=-1)
    assert refused.value.field == "max_retries" and "max_retries" in str(refused.value)
    with pytest.raises(NotFound) as missing:
        client.receive(stream, "nobody")
    assert missing.value.kind in ("no-such-stream", "no-such-group")
    with pytest.raises(ValueError, match="one of"):
        client.replay(stream, "g")
    with pytest.raises(ValueError, match="time zone"):
        client.publish(stream, 1, deliver_at=datetime(2030, 1, 1))


def test_a_full_stream_is_busy(forebay_server: Server, stream: str) -> None:
    with Client(forebay_server.url, retry_for=0) as client:
        client.create_stream(stream, limits={"max_messages": 1})
        client.create_group(stream, "g")
        client.publish(stream, 1)
        with pytest.raises(Busy) as full:
            client.publish(stream, 2)
        assert full.value.kind == "stream-full"
