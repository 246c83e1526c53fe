"""Persistent subscriptions to all streams, and the streams of categories and types, with the Python client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kurrentdbclient import KurrentDBClient, NewEvent, StreamState
from kurrentdbclient.exceptions import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    MaximumSubscriptionsReachedError,
    NotFoundError,
    ServiceUnavailableError,
    StreamIsDeletedError,
)
from test_persistent import PATIENCE, Reading, append, eventually, names_of, unique


class ReadingAll(Reading):
    """The same, of all streams."""

    @staticmethod
    def open(client: KurrentDBClient, group: str, stream: str, **options: Any) -> Any:
        return client.read_subscription_to_all(group, **options)


def of(*prefixes: str) -> dict[str, Any]:
    """Events of streams whose names begin so."""
    return {"filter_include": [prefix + ".*" for prefix in prefixes], "filter_by_stream_name": True}


def places(events: Any) -> list[tuple[str, int]]:
    return [(event.stream_name, event.stream_position) for event in events]


@pytest.fixture
def stem() -> str:
    """Begins the names of a test's streams. It is a category."""
    return unique("orders").replace("-", "")


@pytest.fixture
def group(client: KurrentDBClient) -> Iterator[Callable[..., str]]:
    """Creates subscriptions to all streams, which go with the test."""
    made: list[str] = []

    def make(**settings: Any) -> str:
        made.append(unique("group"))
        client.create_subscription_to_all(made[-1], **settings)
        return made[-1]

    yield make
    for name in made:
        try:
            client.delete_subscription(name)
        except NotFoundError:
            pass


@pytest.fixture
def reading(client: KurrentDBClient) -> Iterator[Callable[..., ReadingAll]]:
    opened: list[ReadingAll] = []

    def open_one(name: str, buffer: int = 10) -> ReadingAll:
        opened.append(ReadingAll(client, name, "$all", buffer))
        return opened[-1]

    yield open_one
    for one in opened:
        one.stop()


# Subscriptions to all streams


def test_settings_of_a_subscription_to_all_are_kept(client: KurrentDBClient, group: Any, stem: str) -> None:
    append(client, stem + "-1", 1)
    settings = dict(consumer_strategy="Pinned", message_timeout=7.5, max_retry_count=3, resolve_links=True)
    name = group(**settings)
    info = client.get_subscription_info(name)
    assert (info.event_source, info.group_name, info.start_from) == ("$all", name, "C:0/P:0")
    assert {key: getattr(info, key) for key in settings} == settings
    assert info.last_checkpointed_event_position == ""
    assert client.get_subscription_info(group(from_end=True)).start_from == "C:-1/P:-1"
    at = client.get_commit_position()
    assert client.get_subscription_info(group(commit_position=at)).start_from == f"C:{at}/P:{at}"


def test_events_of_all_streams_come_in_the_order_of_the_log(
    client: KurrentDBClient, group: Any, reading: Any, stem: str
) -> None:
    append(client, stem + "-1", 2)
    append(client, stem + "-2", 1)
    append(client, "other" + stem, 1)
    name = group(**of(stem))
    one = reading(name)
    first = one.take(3)
    append(client, stem + "-1", 1)
    events = first + one.take(1)
    assert places(events) == [(stem + "-1", 0), (stem + "-1", 1), (stem + "-2", 0), (stem + "-1", 2)]
    assert [event.link for event in events] == [None] * 4
    assert [event.retry_count for event in events] == [0] * 4
    positions = [event.commit_position for event in events]
    of_log = [event.commit_position for event in client.read_all(**of(stem))]
    assert positions == of_log
    for event in events:
        one.ack(event)
    eventually(lambda: client.get_subscription_info(name).outstanding_messages_count == 0)
    info = client.get_subscription_info(name)
    numbers = [int(part[2:]) for part in info.last_known_event_position.split("/")]
    assert numbers[0] == numbers[1] >= positions[-1]
    assert info.last_checkpointed_event_position.startswith("C:")
    one.stop()
    append(client, stem + "-2", 1)
    assert places(reading(name).take(1)) == [(stem + "-2", 1)], "nothing that was acked"


def test_events_that_a_filter_leaves_out_are_progress(
    client: KurrentDBClient, group: Any, reading: Any, stem: str
) -> None:
    append(client, stem + "-1", 1)
    name = group(min_checkpoint_count=1, max_checkpoint_count=1, **of(stem))
    one = reading(name)
    one.ack(one.take(1)[0])
    append(client, "other" + stem, 3)
    last = client.get_commit_position()

    def checkpoint() -> int:
        text = client.get_subscription_info(name).last_checkpointed_event_position
        return int(text[2:].split("/")[0]) if text else 0

    eventually(lambda: checkpoint() >= last)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter_include": ["STEMPlaced", "STEMBill.*"]}, [0, 2]),
        ({"filter_exclude": ["STEMPlaced", r"\$.+", "(?!STEM).*"]}, [1, 2]),
        ({"filter_include": ["STEM-a"], "filter_by_stream_name": True}, [0, 1]),
    ],
)
def test_a_filter_chooses_by_type_or_stream(
    client: KurrentDBClient, group: Any, reading: Any, stem: str, options: Any, expected: Any
) -> None:
    kinds = [("-a", "Placed"), ("-a", "Shipped"), ("-b", "Billed")]
    for number, (stream, kind) in enumerate(kinds):
        event = NewEvent(type=stem + kind, data=b"%d" % number)
        client.append_to_stream(stem + stream, events=[event], current_version=StreamState.ANY)
    put = lambda value: [one.replace("STEM", stem) for one in value] if isinstance(value, list) else value  # noqa: E731
    name = group(**{key: put(value) for key, value in options.items()})
    assert [int(event.data) for event in reading(name).until_quiet()] == expected


def test_it_begins_at_a_position_or_at_the_end(
    client: KurrentDBClient, group: Any, reading: Any, stem: str
) -> None:
    append(client, stem + "-1", 2)
    second = client.get_commit_position()
    append(client, stem + "-1", 1)
    end, at = group(from_end=True, **of(stem)), group(commit_position=second, **of(stem))
    append(client, stem + "-1", 1)
    assert reading(end).positions(1) == [3]
    assert reading(at).positions(3) == [1, 2, 3]
    with pytest.raises(InternalError, match="commit_position must be at most"):
        client.create_subscription_to_all(unique("group"), commit_position=10**12)


def test_an_update_moves_the_start_and_keeps_the_filter(
    client: KurrentDBClient, group: Any, reading: Any, stem: str
) -> None:
    append(client, stem + "-1", 3)
    name = group(**of(stem))
    first = reading(name)
    assert first.positions(3) == [0, 1, 2]
    client.update_subscription_to_all(name, from_end=True, max_retry_count=6)
    with pytest.raises(CancelledError):
        first.wait_for_the_end()
    info = client.get_subscription_info(name)
    assert (info.start_from, info.max_retry_count) == ("C:-1/P:-1", 6)
    append(client, "other" + stem, 1)
    append(client, stem + "-1", 1)
    again = reading(name)
    assert again.positions(1) == [3]
    assert again.nothing_for(0.5)
    client.update_subscription_to_all(name, from_end=False)
    assert client.get_subscription_info(name).start_from == "C:0/P:0"
    assert reading(name).positions(4) == [0, 1, 2, 3], "nothing was settled"


def test_each_error_of_a_subscription_to_all(client: KurrentDBClient, group: Any, reading: Any) -> None:
    for call in [
        lambda: client.get_subscription_info("none"),
        lambda: client.update_subscription_to_all("none", max_retry_count=1),
        lambda: client.delete_subscription("none"),
        lambda: client.replay_parked_events("none"),
        lambda: client.read_subscription_to_all("none"),
    ]:
        with pytest.raises(NotFoundError):
            call()
    name = group(max_subscriber_count=1, from_end=True)
    with pytest.raises(AlreadyExistsError):
        client.create_subscription_to_all(name)
    with pytest.raises(InternalError, match="read_batch_size must be less than history_buffer_size"):
        client.create_subscription_to_all("g", history_buffer_size=20, read_batch_size=20)
    with pytest.raises(InternalError, match="the group name"):
        client.create_subscription_to_all("a/b")
    with pytest.raises(InternalError, match=r"must not be \$all"):
        client.create_subscription_to_stream("g", "$all")
    one = reading(name)
    with pytest.raises(MaximumSubscriptionsReachedError):
        client.read_subscription_to_all(name)
    assert name in names_of(client.list_subscriptions())
    assert all(info.event_source == "$all" for info in client.list_subscriptions() if info.group_name == name)
    assert name in names_of(client.list_subscriptions_to_stream("$all"))
    client.delete_subscription(name)
    with pytest.raises(CancelledError):
        one.wait_for_the_end()
    with pytest.raises(NotFoundError):
        client.get_subscription_info(name)
    assert name not in names_of(client.list_subscriptions())


def test_retries_parking_and_replay(
    client: KurrentDBClient, server: Any, group: Any, reading: Any, stem: str
) -> None:
    append(client, stem + "-1", 2)
    name = group(max_retry_count=1, **of(stem))
    one = reading(name)
    first, second = one.take(2)
    one.nack(second, "retry")
    (again,) = one.take(1)
    assert (again.stream_position, again.retry_count) == (1, 1)
    one.nack(first, "park")
    one.nack(again, "retry")
    eventually(lambda: client.get_subscription_info(name).parked_message_count == 2)
    parked = f"$persistentsubscription-$all::{name}-parked"
    links = client.get_stream(parked)
    assert [link.data for link in links] == [b"0@%s-1" % stem.encode(), b"1@%s-1" % stem.encode()]
    assert json.loads(links[1].metadata)["reason"] == "Reached retry count of 1"
    assert places(client.get_stream(parked, resolve_links=True)) == [(stem + "-1", 0), (stem + "-1", 1)]
    status, _, body = server.http("GET", f"/subscriptions/%24all/{name}/info")
    assert (status, json.loads(body)["parkedMessageCount"]) == (200, 2)
    status, _, _ = server.http("DELETE", f"/subscriptions/%24all/{name}")
    assert status == 400
    client.replay_parked_events(name)
    replayed = one.take(2)
    assert sorted(event.stream_position for event in replayed) == [0, 1]
    for event in replayed:
        one.ack(event)
    eventually(lambda: client.get_subscription_info(name).parked_message_count == 0)


def test_events_that_are_gone_are_passed_over(
    client: KurrentDBClient, group: Any, reading: Any, stem: str
) -> None:
    append(client, stem + "-1", 2)
    append(client, stem + "-2", 1)
    name = group(**of(stem))
    eventually(lambda: client.get_subscription_info(name).read_buffer_count == 3)
    client.delete_stream(stem + "-1", current_version=StreamState.ANY)
    one = reading(name)
    assert places(one.take(1)) == [(stem + "-2", 0)]
    one.ack(one.seen[0])
    eventually(lambda: client.get_subscription_info(name).outstanding_messages_count == 0)


def test_an_acked_event_of_all_streams_does_not_come_again_after_a_kill(own_server: Any, stem: str) -> None:
    with KurrentDBClient(own_server.url) as client:
        name = unique("group")
        append(client, stem + "-1", 10)
        client.create_subscription_to_all(name, **of(stem))
        one = ReadingAll(client, name, "$all", 100)
        for event in one.take(10)[:4]:
            one.ack(event)
        eventually(lambda: client.get_subscription_info(name).outstanding_messages_count == 6)
        # An ack is in the log with the next write, and this is one.
        append(client, stem + "-1", 1)
        own_server.kill()
        with pytest.raises(ServiceUnavailableError):
            one.wait_for_the_end()
        own_server.start()
    with KurrentDBClient(own_server.url) as client:
        append(client, stem + "-2", 5)
        two = ReadingAll(client, name, "$all", 100)
        events = two.until_quiet()
        expected = [(stem + "-1", n) for n in range(4, 11)] + [(stem + "-2", n) for n in range(5)]
        assert sorted(places(events)) == expected
        assert client.get_subscription_info(name).event_source == "$all"
        two.stop()


def test_a_subscription_to_all_is_a_group_of_the_native_api(own_server: Any, stem: str) -> None:
    with KurrentDBClient(own_server.url) as client:
        append(client, stem + "-1", 2)
        client.create_subscription_to_all("mail", **of(stem))
        eventually(lambda: client.get_subscription_info("mail").read_buffer_count == 2)
    status, _, body = own_server.http("GET", "/groups", native=True)
    (group,) = json.loads(body)["groups"]
    assert (status, group["stream"], group["group"], group["ready"]) == (200, "$all::mail", "mail", 2)
    assert b'stream="$all::mail"' in own_server.http("GET", "/metrics", native=True)[2]


# Categories and types


def test_a_category_leads_to_the_events_of_its_streams(client: KurrentDBClient, stem: str) -> None:
    append(client, stem + "-1", 2)
    append(client, stem + "-2", 1)
    append(client, stem, 1)
    append(client, stem + "x-1", 1)
    links = client.get_stream("$ce-" + stem)
    text = stem.encode()
    assert [link.data for link in links] == [b"0@%s-1" % text, b"1@%s-1" % text, b"0@%s-2" % text]
    assert {link.type for link in links} == {"$>"}
    assert json.loads(links[2].metadata)["$o"] == stem + "-2"
    expected = [(stem + "-1", 0), (stem + "-1", 1), (stem + "-2", 0)]
    resolved = client.get_stream("$ce-" + stem, resolve_links=True)
    assert places(resolved) == expected
    assert [event.link.stream_position for event in resolved] == [0, 1, 2]
    append(client, stem + "-1", 1)
    last = client.get_stream("$ce-" + stem, resolve_links=True, backwards=True, limit=2)
    assert places(last) == [(stem + "-1", 2), (stem + "-2", 0)], "everything that was appended before a read is in it"


def test_a_type_leads_to_its_events(client: KurrentDBClient, stem: str) -> None:
    for number, kind in enumerate(["Placed", "Billed", "Placed"]):
        event = NewEvent(type=stem + kind, data=b"%d" % number)
        client.append_to_stream(f"{stem}-{number}", events=[event], current_version=StreamState.ANY)
    events = client.get_stream(f"$et-{stem}Placed", resolve_links=True)
    assert places(events) == [(stem + "-0", 0), (stem + "-2", 0)]
    with pytest.raises(NotFoundError):
        client.get_stream(f"$et-{stem}Shipped")
    event = NewEvent(type=stem + "Shipped", data=b"")
    client.append_to_stream(stem + "-9", events=[event], current_version=StreamState.ANY)
    assert places(client.get_stream(f"$et-{stem}Shipped", resolve_links=True)) == [(stem + "-9", 0)]


def test_a_category_is_followed(client: KurrentDBClient, stem: str) -> None:
    append(client, stem + "-1", 1)
    with client.subscribe_to_stream("$ce-" + stem, resolve_links=True, timeout=PATIENCE) as events:
        assert places([next(events)]) == [(stem + "-1", 0)]
        append(client, stem + "-2", 1)
        assert places([next(events)]) == [(stem + "-2", 0)]
    with client.subscribe_to_stream("$ce-" + stem, from_end=True, resolve_links=True, timeout=PATIENCE) as events:
        append(client, stem + "-3", 1)
        assert places([next(events)]) == [(stem + "-3", 0)]


def test_a_category_has_subscriptions(client: KurrentDBClient, stem: str) -> None:
    append(client, stem + "-1", 2)
    name, stream = unique("group"), "$ce-" + stem
    client.create_subscription_to_stream(name, stream, resolve_links=True)
    one = Reading(client, name, stream, 10)
    append(client, stem + "-2", 1)
    events = one.take(3)
    assert places(events) == [(stem + "-1", 0), (stem + "-1", 1), (stem + "-2", 0)]
    assert [event.link.stream_name for event in events] == [stream] * 3
    for event in events:
        one.ack(event)
    eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 0)
    late = unique("group")
    client.create_subscription_to_stream(late, stream, from_end=True, resolve_links=True)
    append(client, stem + "-3", 1)
    two = Reading(client, late, stream, 10)
    assert places(two.take(1)) == [(stem + "-3", 0)]
    one.stop()
    two.stop()


def test_a_category_is_written_by_the_server_alone(client: KurrentDBClient, stem: str) -> None:
    append(client, stem + "-1", 1)
    stream = "$ce-" + stem
    assert len(client.get_stream(stream)) == 1
    with pytest.raises(Exception, match="cannot be appended to a stream of links"):
        append(client, stream, 1)
    client.delete_stream(stream, current_version=StreamState.ANY)
    assert len(client.get_stream(stream)) == 1, "it is made again"
    client.tombstone_stream(stream, current_version=StreamState.ANY)
    with pytest.raises(StreamIsDeletedError):
        client.get_stream(stream)


def test_links_are_there_once_after_kills(own_server: Any, stem: str) -> None:
    stream = "$ce-" + stem
    appended = 0
    for _ in range(5):
        with KurrentDBClient(own_server.url) as client:
            append(client, stem + "-1", 50)
            appended += 50
            if appended == 50:
                client.get_stream(stream)
            append(client, stem + "-1", 50)
            appended += 50
            # The feeder is at work.
            time.sleep(0.005)
            own_server.kill()
            own_server.start()
    with KurrentDBClient(own_server.url) as client:
        events = client.get_stream(stream, resolve_links=True)
        assert [event.stream_position for event in events] == list(range(appended))
