"""The introduction to competing consumers of Event Store 4, step by step: groups created over HTTP, consumed with the
Python client, watched and repaired over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from kurrentdbclient import KurrentDBClient
from test_persistent import Reading, append, eventually, unique

SUMMARY = {
    "links", "eventStreamId", "groupName", "parkedMessageUri", "getMessagesUri", "status", "averageItemsPerSecond",
    "totalItemsProcessed", "lastProcessedEventNumber", "lastCheckpointedEventPosition", "lastKnownEventNumber",
    "lastKnownEventPosition", "connectionCount", "totalInFlightMessages",
}  # fmt: skip
DETAIL = (SUMMARY - {"connectionCount"}) | {
    "config", "countSinceLastMeasurement", "readBufferCount", "liveBufferCount", "retryBufferCount",
    "outstandingMessagesCount", "parkedMessageCount", "connections",
}  # fmt: skip
CONNECTION = {
    "from", "username", "averageItemsPerSecond", "totalItemsProcessed", "countSinceLastMeasurement", "extraStatistics",
    "availableSlots", "inFlightMessages", "connectionName",
}  # fmt: skip
SETTINGS = {
    "resolveLinktos", "startFrom", "startPosition", "messageTimeoutMilliseconds", "extraStatistics", "maxRetryCount",
    "liveBufferSize", "bufferSize", "readBatchSize", "preferRoundRobin", "checkPointAfterMilliseconds",
    "minCheckPointCount", "maxCheckPointCount", "maxSubscriberCount", "namedConsumerStrategy",
}  # fmt: skip


@pytest.fixture
def bar() -> str:
    return unique("bar")


@pytest.fixture
def create(server: Any, bar: str) -> Callable[..., None]:
    """Creates groups on the test's stream, as an administrator does."""

    def one(group: str, **settings: Any) -> None:
        status, _, body = server.http("PUT", f"/subscriptions/{bar}/{group}", settings)
        assert status == 201, body

    return one


@pytest.fixture
def connect(client: KurrentDBClient, bar: str) -> Iterator[Callable[..., Reading]]:
    opened: list[Reading] = []

    def one(group: str, in_flight: int = 10) -> Reading:
        opened.append(Reading(client, group, bar, in_flight))
        return opened[-1]

    yield one
    for reading in opened:
        reading.stop()


def info(server: Any, stream: str, group: str) -> Any:
    status, _, body = server.http("GET", f"/subscriptions/{stream}/{group}/info")
    assert status == 200, body
    return json.loads(body)


def test_each_group_has_every_message_and_its_clients_share_them(
    client: KurrentDBClient, bar: str, create: Any, connect: Any
) -> None:
    create("foo")
    create("baz")
    three = [connect("foo", in_flight=4) for _ in range(3)]
    other = connect("baz", in_flight=20)
    append(client, bar, 12)
    shared = [one.positions(4) for one in three]
    assert sorted(sum(shared, [])) == list(range(12))
    assert other.positions(12) == list(range(12))
    assert all(one.nothing_for(0.1) for one in three)


def test_a_place_becomes_free_by_an_ack_a_nack_or_the_timeout(
    client: KurrentDBClient, bar: str, create: Any, connect: Any
) -> None:
    create("foo", messageTimeoutMilliseconds=1500, maxRetryCount=0)
    a = connect("foo", in_flight=2)
    append(client, bar, 5)
    first, second = a.take(2)
    assert a.nothing_for(0.2)
    a.ack(first)
    assert a.positions(1) == [2]
    a.nack(second, "skip")
    assert a.positions(1) == [3]
    # Two messages are in process without an answer, and time out: without retries they are parked.
    assert a.positions(1) == [4]
    eventually(lambda: client.get_subscription_info("foo", bar).parked_message_count >= 2)


def test_a_checkpoint_is_written_at_the_interval_or_at_the_maximum(
    client: KurrentDBClient, server: Any, bar: str, create: Any, connect: Any
) -> None:
    """At least 5 and at most 10, with an interval of one second and with one of an hour."""

    def checkpoint(group: str) -> str:
        return info(server, bar, group)["lastCheckpointedEventPosition"]

    append(client, bar, 30)
    for group, interval in [("second", 1000), ("hour", 3_600_000)]:
        create(group, checkPointAfterMilliseconds=interval, minCheckPointCount=5, maxCheckPointCount=10)
        one = connect(group, in_flight=1)
        events = 5 if group == "second" else 10
        for _ in range(events - 1):
            one.ack(one.take(1)[0])
        # The next event is there, so the acks before it have been taken in.
        last = one.take(1)[0]
        assert checkpoint(group) in ("", None), group
        one.ack(last)
        eventually(lambda group=group, events=events: checkpoint(group) == str(events - 1))


def test_messages_are_parked_and_replayed_over_http(
    client: KurrentDBClient, server: Any, bar: str, create: Any, connect: Any
) -> None:
    create("foo")
    append(client, bar, 3)
    one = connect("foo")
    for event in one.take(3):
        one.nack(event, "park")
    eventually(lambda: info(server, bar, "foo")["parkedMessageCount"] == 3)
    uri = info(server, bar, "foo")["parkedMessageUri"]
    assert unquote(uri).endswith(f"/streams/$persistentsubscription-{bar}::foo-parked"), uri
    status, _, body = server.http("GET", f"/subscriptions/viewparkedmessages/{bar}/foo/0/forward/10")
    assert status == 200 and len(json.loads(body)["entries"]) == 3, body
    assert server.http("POST", f"/subscriptions/{bar}/foo/replayParked?stopAt=2", b"")[0] == 200
    for event in one.take(2):
        one.ack(event)
    eventually(lambda: info(server, bar, "foo")["parkedMessageCount"] == 1)
    assert server.http("POST", f"/subscriptions/{bar}/foo/replayParked", b"")[0] == 200
    one.ack(one.take(1)[0])
    eventually(lambda: info(server, bar, "foo")["parkedMessageCount"] == 0)


def test_monitoring_has_its_known_fields(
    client: KurrentDBClient, server: Any, bar: str, create: Any, connect: Any
) -> None:
    create("foo", extraStatistics=True, minCheckPointCount=1, maxCheckPointCount=1)
    append(client, bar, 6)
    one = connect("foo")
    for event in one.take(6)[:4]:
        one.ack(event)
    eventually(lambda: info(server, bar, "foo")["lastProcessedEventNumber"] == 3)
    detail = info(server, bar, "foo")
    assert set(detail) == DETAIL
    assert set(detail["config"]) <= SETTINGS and {"maxRetryCount", "namedConsumerStrategy"} <= set(detail["config"])
    assert (detail["lastKnownEventNumber"], detail["outstandingMessagesCount"]) == (5, 2)
    assert detail["liveBufferCount"] == 0, "there is no live buffer"
    # How far the group is behind, by the introduction's formula.
    assert detail["lastKnownEventNumber"] - detail["lastProcessedEventNumber"] == 2
    (connection,) = detail["connections"]
    assert set(connection) == CONNECTION
    assert (connection["availableSlots"], connection["inFlightMessages"]) == (8, 2)
    keys = [measurement["key"] for measurement in connection["extraStatistics"]]
    assert {"Mean", "Median", "Quintile 1", "Quintile 5", "90%", "95%", "99%", "99.9%"} <= set(keys)
    for path in ["/subscriptions", f"/subscriptions/{bar}"]:
        listed = json.loads(server.http("GET", path)[2])
        (summary,) = [one for one in listed if one["eventStreamId"] == bar]
        assert set(summary) == SUMMARY
        assert (summary["connectionCount"], summary["totalInFlightMessages"]) == (1, 2)
