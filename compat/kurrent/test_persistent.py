"""Persistent subscriptions with the Python client: settings, consuming, answers, parking, and each error."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from kurrentdbclient import KurrentDBClient, NewEvent, RecordedEvent, StreamState
from kurrentdbclient.exceptions import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    MaximumSubscriptionsReachedError,
    NotFoundError,
    ServiceUnavailableError,
)

# Longer than anything here takes.
PATIENCE = 20.0


def unique(stem: str) -> str:
    return f"{stem}-{uuid4().hex[:12]}"


def append(client: KurrentDBClient, stream: str, count: int) -> None:
    events = [NewEvent(type="T", data=b"%d" % n) for n in range(count)]
    client.append_to_stream(stream, events=events, current_version=StreamState.ANY)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until it is so."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def names_of(infos: Any) -> list[str]:
    return sorted(info.group_name for info in infos)


class Reading:
    """A consumer whose events are read in a thread of its own."""

    def __init__(self, client: KurrentDBClient, group: str, stream: str, buffer: int) -> None:
        # Answers leave at once, so that a test sees what follows from each.
        self.subscription = self.open(
            client,
            group,
            stream,
            event_buffer_size=buffer,
            max_ack_batch_size=1,
            max_ack_delay=0.01,
            stopping_grace=0.05,
        )
        self.seen: list[RecordedEvent] = []
        self.events: queue.Queue[RecordedEvent | BaseException] = queue.Queue()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @staticmethod
    def open(client: KurrentDBClient, group: str, stream: str, **options: Any) -> Any:
        return client.read_subscription_to_stream(group, stream, **options)

    def _read(self) -> None:
        try:
            for event in self.subscription:
                self.events.put(event)
        except BaseException as error:
            self.events.put(error)
        else:
            self.events.put(StopIteration())

    def take(self, count: int) -> list[RecordedEvent]:
        """The next so many events."""
        taken = []
        for _ in range(count):
            event = self.events.get(timeout=PATIENCE)
            if isinstance(event, BaseException):
                raise event
            taken.append(event)
        self.seen += taken
        return taken

    def positions(self, count: int) -> list[int]:
        return [event.stream_position for event in self.take(count)]

    def nothing_for(self, seconds: float) -> bool:
        """Whether no event comes."""
        try:
            event = self.events.get(timeout=seconds)
        except queue.Empty:
            return True
        raise AssertionError(f"there is one: {event}")

    def until_quiet(self, seconds: float = 1.0) -> list[RecordedEvent]:
        """All events until none comes for a while."""
        taken = []
        while True:
            try:
                event = self.events.get(timeout=seconds)
            except queue.Empty:
                self.seen += taken
                return taken
            assert not isinstance(event, BaseException), event
            taken.append(event)

    def wait_for_the_end(self) -> None:
        """Raises what the client raises when the call ends."""
        while True:
            event = self.events.get(timeout=PATIENCE)
            if isinstance(event, BaseException):
                raise event

    def ack(self, event: RecordedEvent) -> None:
        self.subscription.ack(event)

    def nack(self, event: RecordedEvent, action: Any) -> None:
        self.subscription.nack(event, action)

    def stop(self) -> None:
        self.subscription.stop()
        self.thread.join(PATIENCE)


@pytest.fixture
def stream() -> str:
    return unique("orders")


@pytest.fixture
def group(client: KurrentDBClient, stream: str) -> Iterator[Callable[..., str]]:
    """Creates subscriptions to the test's stream, which go with the test."""
    made: list[str] = []

    def make(**settings: Any) -> str:
        made.append(unique("group"))
        client.create_subscription_to_stream(made[-1], stream, **settings)
        return made[-1]

    yield make
    for name in made:
        try:
            client.delete_subscription(name, stream)
        except NotFoundError:
            pass


@pytest.fixture
def reading(client: KurrentDBClient, stream: str) -> Iterator[Callable[..., Reading]]:
    """Opens consumers, which stop with the test."""
    opened: list[Reading] = []

    def open_one(name: str, buffer: int = 10, on: str | None = None) -> Reading:
        opened.append(Reading(client, name, on or stream, buffer))
        return opened[-1]

    yield open_one
    for one in opened:
        one.stop()


# Settings


def test_defaults_are_shown_as_they_were_sent(client: KurrentDBClient, stream: str, group: Any) -> None:
    name = group()
    info = client.get_subscription_info(name, stream)
    assert (info.event_source, info.group_name) == (stream, name)
    assert info.start_from == "0"
    assert (info.message_timeout, info.max_retry_count) == (30.0, 10)
    assert (info.live_buffer_size, info.history_buffer_size, info.read_batch_size) == (500, 500, 200)
    assert (info.checkpoint_after, info.min_checkpoint_count, info.max_checkpoint_count) == (2.0, 10, 1000)
    assert (info.max_subscriber_count, info.consumer_strategy) == (5, "DispatchToSingle")
    assert (info.resolve_links, info.extra_statistics) == (False, False)
    assert (info.last_checkpointed_event_position, info.last_known_event_position) == ("", "")
    assert info.connections == []


def test_every_setting_is_kept(client: KurrentDBClient, stream: str, group: Any) -> None:
    for strategy in ["RoundRobin", "DispatchToSingle", "Pinned", "PinnedByCorrelation"]:
        settings = dict(
            resolve_links=True,
            consumer_strategy=strategy,
            message_timeout=7.5,
            max_retry_count=3,
            min_checkpoint_count=5,
            max_checkpoint_count=50,
            checkpoint_after=1.5,
            max_subscriber_count=2,
            live_buffer_size=300,
            read_batch_size=30,
            history_buffer_size=400,
            extra_statistics=True,
        )
        info = client.get_subscription_info(group(stream_position=7, **settings), stream)
        assert info.start_from == "7"
        assert {key: getattr(info, key) for key in settings} == settings


def test_start_at_the_end_or_at_an_event(client: KurrentDBClient, stream: str, group: Any, reading: Any) -> None:
    append(client, stream, 5)
    end, third = group(from_end=True), group(stream_position=2)
    assert client.get_subscription_info(end, stream).start_from == "-1"
    append(client, stream, 2)
    assert reading(end).positions(2) == [5, 6]
    assert reading(third).positions(5) == [2, 3, 4, 5, 6]


def test_an_update_changes_one_setting_and_keeps_the_others(
    client: KurrentDBClient, stream: str, group: Any
) -> None:
    name = group(max_retry_count=4, message_timeout=9)
    before = client.get_subscription_info(name, stream)
    client.update_subscription_to_stream(name, stream, max_retry_count=6)
    after = client.get_subscription_info(name, stream)
    assert after.max_retry_count == 6
    unchanged = [key for key in vars(before) if key not in ("max_retry_count", "status")]
    assert {key: getattr(after, key) for key in unchanged} == {key: getattr(before, key) for key in unchanged}


def test_an_update_moves_the_start_while_nothing_was_settled(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 3)
    name = group()
    client.update_subscription_to_stream(name, stream, from_end=True)
    assert client.get_subscription_info(name, stream).start_from == "-1"
    append(client, stream, 1)
    assert reading(name).positions(1) == [3]


def test_refused_settings_are_internal_errors_with_a_reason(client: KurrentDBClient, stream: str) -> None:
    with pytest.raises(InternalError, match="read_batch_size must be less than history_buffer_size"):
        client.create_subscription_to_stream("g", stream, history_buffer_size=20, read_batch_size=20)
    with pytest.raises(InternalError, match="consumer_strategy must be one of"):
        client.create_subscription_to_stream("g", stream, consumer_strategy="Unheard")  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="max_retry_count must be at least 0"):
        client.create_subscription_to_stream("g", stream, max_retry_count=-1)
    with pytest.raises(InternalError, match="the group name"):
        client.create_subscription_to_stream("a/b", stream)
    with pytest.raises(NotFoundError):
        client.get_subscription_info("g", stream)


# Errors


def test_a_group_that_exists_is_not_created_again(client: KurrentDBClient, stream: str, group: Any) -> None:
    name = group()
    with pytest.raises(AlreadyExistsError):
        client.create_subscription_to_stream(name, stream)


def test_a_group_that_does_not_exist_is_not_found(client: KurrentDBClient, stream: str) -> None:
    for call in [
        lambda: client.get_subscription_info("none", stream),
        lambda: client.update_subscription_to_stream("none", stream, max_retry_count=1),
        lambda: client.delete_subscription("none", stream),
        lambda: client.replay_parked_events("none", stream),
        lambda: client.read_subscription_to_stream("none", stream),
    ]:
        with pytest.raises(NotFoundError):
            call()
    # The client makes an empty list of that error.
    assert client.list_subscriptions_to_stream(stream) == []


def test_no_more_consumers_than_there_may_be(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    name = group(max_subscriber_count=1)
    first = reading(name)
    with pytest.raises(MaximumSubscriptionsReachedError):
        client.read_subscription_to_stream(name, stream)
    first.stop()
    eventually(lambda: client.get_subscription_info(name, stream).connections == [])
    append(client, stream, 1)
    assert reading(name).positions(1) == [0]


# Consuming


def test_events_come_as_they_were_appended(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    event = NewEvent(type="Placed", data=b'{"n":1}', metadata=b'{"who":"me"}')
    client.append_to_stream(stream, events=[event], current_version=StreamState.NO_STREAM)
    (seen,) = reading(group()).take(1)
    assert (seen.id, seen.type, seen.data, seen.metadata) == (event.id, event.type, event.data, event.metadata)
    assert (seen.stream_name, seen.stream_position, seen.retry_count) == (stream, 0, 0)
    assert seen.commit_position is not None


def test_an_acked_event_is_not_sent_again(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 3)
    name = group(message_timeout=1)
    first = reading(name)
    for event in first.take(3):
        first.ack(event)
    eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 0)
    first.stop()
    append(client, stream, 1)
    assert reading(name).positions(1) == [3]


def test_a_consumer_holds_no_more_than_its_buffer(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 10)
    name = group(consumer_strategy="RoundRobin")
    one = reading(name, buffer=4)
    assert one.positions(4) == [0, 1, 2, 3]
    assert one.nothing_for(0.5)
    info = client.get_subscription_info(name, stream)
    (connection,) = info.connections
    assert (connection.in_flight_messages, connection.available_slots) == (4, 0)
    assert (info.total_in_flight_messages, info.outstanding_messages_count) == (4, 4)
    one.ack(one.seen[1])
    assert one.positions(1) == [4]


def test_seven_messages_and_two_clients_with_room_for_two_and_three(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    name = group(consumer_strategy="RoundRobin")
    a, b = reading(name, buffer=2), reading(name, buffer=3)
    append(client, stream, 7)
    held = a.positions(2) + b.positions(3)
    assert sorted(held) == [0, 1, 2, 3, 4]
    assert a.nothing_for(0.5) and b.nothing_for(0.1)
    # A place becomes free by an ack, and the sixth message goes there.
    a.ack(a.seen[0])
    assert a.positions(1) == [5]
    b.nack(b.seen[0], "skip")
    assert b.positions(1) == [6]


def test_any_consumer_may_answer_for_an_event(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 1)
    name = group(consumer_strategy="RoundRobin")
    one = reading(name)
    (event,) = one.take(1)
    other = reading(name)
    other.ack(event)
    eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 0)


# Strategies


def test_round_robin_shares_and_single_does_not(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    shared, single = group(consumer_strategy="RoundRobin"), group(consumer_strategy="DispatchToSingle")
    pairs = {name: (reading(name, buffer=50), reading(name, buffer=50)) for name in (shared, single)}
    append(client, stream, 20)
    a, b = pairs[shared]
    assert len(a.until_quiet()) + len(b.until_quiet()) == 20
    assert a.seen and b.seen
    c, d = pairs[single]
    assert sorted([len(c.until_quiet()), len(d.until_quiet())]) == [0, 20]


def test_a_correlation_stays_with_one_consumer(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    name = group(consumer_strategy="PinnedByCorrelation")
    consumers = [reading(name, buffer=100), reading(name, buffer=100)]
    for n in range(40):
        metadata = json.dumps({"$correlationId": f"c{n % 8}"}).encode()
        event = NewEvent(type="T", data=b"{}", metadata=metadata)
        client.append_to_stream(stream, events=[event], current_version=StreamState.ANY)
    where: dict[str, set[int]] = {}
    for at, consumer in enumerate(consumers):
        for event in consumer.until_quiet():
            where.setdefault(json.loads(event.metadata)["$correlationId"], set()).add(at)
    assert len(where) == 8
    assert all(len(at) == 1 for at in where.values()), where
    assert {next(iter(at)) for at in where.values()} == {0, 1}, "both have work"


def test_events_of_other_keys_pass_a_full_consumer(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    name = group(consumer_strategy="PinnedByCorrelation")
    one, other = reading(name, buffer=1), reading(name, buffer=50)

    def send(correlation: str) -> None:
        event = NewEvent(type="T", data=b"{}", metadata=json.dumps({"$correlationId": correlation}).encode())
        client.append_to_stream(stream, events=[event], current_version=StreamState.ANY)

    keys = [f"c{n}" for n in range(8)]
    for key in keys:
        send(key)
    held = one.take(1)[0]
    passed = other.until_quiet()
    full = json.loads(held.metadata)["$correlationId"]
    # Keys of the first consumer wait for it, whichever else it has; those of the other one do not.
    assert passed and full not in [json.loads(event.metadata)["$correlationId"] for event in passed]
    send(full)
    send(json.loads(passed[0].metadata)["$correlationId"])
    assert len(other.take(1)) == 1
    assert one.nothing_for(0.3)
    one.ack(held)
    assert len(one.take(1)) == 1


def test_one_consumer_with_room_for_one_has_events_in_order(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 30)
    one = reading(group(), buffer=1)
    positions = []
    for n in range(40):
        if n == 10:
            append(client, stream, 10)
        (event,) = one.take(1)
        positions.append(event.stream_position)
        one.ack(event)
    assert positions == list(range(40))


# Answers


@pytest.mark.parametrize("action", ["retry", "unknown"])
def test_a_retried_event_comes_again_with_its_count(
    client: KurrentDBClient, stream: str, group: Any, reading: Any, action: str
) -> None:
    append(client, stream, 1)
    one = reading(group(max_retry_count=5))
    for count in range(3):
        (event,) = one.take(1)
        assert (event.stream_position, event.retry_count) == (0, count)
        one.nack(event, action)
    (event,) = one.take(1)
    assert event.retry_count == 3


@pytest.mark.parametrize("action", ["skip", "stop"])
def test_a_skipped_event_does_not_come_again(
    client: KurrentDBClient, stream: str, group: Any, reading: Any, action: str
) -> None:
    append(client, stream, 2)
    name = group()
    one = reading(name, buffer=1)
    (event,) = one.take(1)
    one.nack(event, action)
    assert one.positions(1) == [1]
    info = client.get_subscription_info(name, stream)
    assert info.parked_message_count == 0


def test_a_parked_event_comes_back_by_a_replay(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 3)
    name = group()
    one = reading(name)
    for event in one.take(3):
        one.nack(event, "park")
    eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 3)
    assert one.nothing_for(0.3)
    client.replay_parked_events(name, stream)
    again = one.take(3)
    assert sorted(event.stream_position for event in again) == [0, 1, 2]
    assert {event.retry_count for event in again} == {0}
    for event in again:
        one.ack(event)
    eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 0)
    assert client.get_subscription_info(name, stream).parked_message_count == 0


def test_an_event_is_parked_after_its_retries(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 1)
    name = group(max_retry_count=2)
    one = reading(name)
    counts = []
    for _ in range(3):
        (event,) = one.take(1)
        counts.append(event.retry_count)
        one.nack(event, "retry")
    assert counts == [0, 1, 2]
    eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 1)
    assert one.nothing_for(0.3)


def test_an_event_without_an_answer_comes_again_and_is_parked_at_last(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 1)
    name = group(message_timeout=0.3, max_retry_count=1)
    one = reading(name)
    assert [event.retry_count for event in one.take(2)] == [0, 1]
    eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 1)


def test_events_of_a_consumer_that_stops_go_to_another(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 4)
    name = group(max_retry_count=0)
    one = reading(name)
    one.take(4)
    one.ack(one.seen[0])
    eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 3)
    one.stop()
    assert sorted(reading(name).positions(3)) == [1, 2, 3]
    assert client.get_subscription_info(name, stream).parked_message_count == 0, "that is not a failure of theirs"


# Update and delete while connected


def test_an_update_drops_consumers_which_come_back(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 2)
    name = group()
    one = reading(name, buffer=1)
    one.ack(one.take(1)[0])
    assert one.positions(1) == [1]
    client.update_subscription_to_stream(name, stream, max_retry_count=2)
    with pytest.raises(CancelledError):
        one.wait_for_the_end()
    assert reading(name).positions(1) == [1], "the acked event does not come again"


def test_a_deleted_group_drops_its_consumers(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    name = group()
    one = reading(name)
    client.delete_subscription(name, stream)
    with pytest.raises(CancelledError):
        one.wait_for_the_end()
    with pytest.raises(NotFoundError):
        client.get_subscription_info(name, stream)
    append(client, stream, 1)
    client.create_subscription_to_stream(name, stream)
    assert reading(name).positions(1) == [0], "a new group begins anew"


def test_a_tombstone_of_the_stream_ends_its_consumers(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 1)
    name = group()
    one = reading(name)
    one.take(1)
    client.tombstone_stream(stream, current_version=StreamState.ANY)
    with pytest.raises(CancelledError):
        one.wait_for_the_end()
    with pytest.raises(NotFoundError):
        client.read_subscription_to_stream(name, stream)


# Info and list


def test_events_that_wait_for_a_retry_are_counted(
    client: KurrentDBClient, server: Any, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 1)
    name = group()
    # How long a retry waits is a setting of the native API.
    change = {"backoff": {"min": "60s", "max": "60s", "jitter": 0}}
    headers = {"content-type": "application/json"}
    status, _, body = server.http("PATCH", f"/streams/{stream}/groups/{name}", change, headers, native=True)
    assert status == 200, body
    one = reading(name)
    one.nack(one.take(1)[0], "retry")
    eventually(lambda: client.get_subscription_info(name, stream).retry_buffer_count == 1)
    info = client.get_subscription_info(name, stream)
    assert (info.outstanding_messages_count, info.read_buffer_count) == (0, 0)


def test_a_list_has_every_group_of_a_stream(client: KurrentDBClient, stream: str, group: Any) -> None:
    made = sorted([group(), group()])
    assert names_of(client.list_subscriptions_to_stream(stream)) == made
    assert set(made) <= set(names_of(client.list_subscriptions()))
    for name in made:
        client.delete_subscription(name, stream)
    assert client.list_subscriptions_to_stream(stream) == []


def test_info_tells_the_progress_and_the_consumers(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 12)
    name = group(extra_statistics=True, min_checkpoint_count=1, max_checkpoint_count=1)
    one = reading(name, buffer=5)
    info = client.get_subscription_info(name, stream)
    (connection,) = info.connections
    assert connection.username == "anonymous"
    assert connection.connection_name == client.connection_spec.options.connection_name
    for _ in range(10):
        one.ack(one.take(1)[0])
    eventually(lambda: client.get_subscription_info(name, stream).last_checkpointed_event_position == "9")
    info = client.get_subscription_info(name, stream)
    assert info.last_known_event_position == "11"
    assert info.total_items == 12
    (connection,) = info.connections
    assert connection.total_items == 12
    measured = {one.key: one.value for one in connection.observed_measurements}
    assert list(measured) == [
        "Mean", "Median", "Fastest", "Quintile 1", "Quintile 2", "Quintile 3", "Quintile 4", "Quintile 5",
        "90%", "95%", "99%", "99.5%", "99.9%", "Highest",
    ]  # fmt: skip
    assert 0 <= measured["Fastest"] <= measured["Median"] <= measured["Highest"]


def test_the_checkpoint_of_the_walk_through(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    """Interval one second, at least 5, at most 10."""
    append(client, stream, 30)
    name = group(checkpoint_after=1, min_checkpoint_count=5, max_checkpoint_count=10)
    one = reading(name, buffer=1)

    def checkpoint() -> str:
        return client.get_subscription_info(name, stream).last_checkpointed_event_position

    def ack(count: int) -> None:
        for _ in range(count):
            one.ack(one.take(1)[0])

    ack(10)
    eventually(lambda: checkpoint() != "")
    reached = int(checkpoint())
    assert reached <= 9
    ack(5)
    eventually(lambda: int(checkpoint()) >= 14)


# The parked stream


def test_the_parked_stream_is_read_under_its_known_name(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 3)
    name = group(max_retry_count=0)
    parked = f"$persistentsubscription-{stream}::{name}-parked"
    with pytest.raises(NotFoundError):
        client.get_stream(parked)
    one = reading(name)
    first, second, third = one.take(3)
    one.nack(first, "park")
    one.nack(second, "retry")
    one.ack(third)
    eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 2)
    links = client.get_stream(parked)
    assert [(link.type, link.data) for link in links] == [
        ("$>", f"0@{stream}".encode()),
        ("$>", f"1@{stream}".encode()),
    ]
    reasons = [json.loads(link.metadata) for link in links]
    assert reasons[1]["reason"] == "Reached retry count of 0"
    assert [reason["subscriptionEventNumber"] for reason in reasons] == [0, 1]
    resolved = client.get_stream(parked, resolve_links=True, backwards=True)
    assert [event.id for event in resolved] == [second.id, first.id]
    assert resolved[0].link is not None and resolved[0].link.stream_name == parked
    (last,) = client.get_stream(parked, backwards=True, limit=1)
    assert last.stream_position == 1
    client.replay_parked_events(name, stream)
    eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 0)
    with pytest.raises(NotFoundError):
        client.get_stream(parked)


# Other doors


def test_a_subscription_is_a_group_of_the_native_api(
    client: KurrentDBClient, server: Any, stream: str, group: Any, reading: Any
) -> None:
    name = group(max_retry_count=3)
    status, _, body = server.http("GET", f"/streams/{stream}/groups/{name}", native=True)
    assert status == 200
    assert json.loads(body)["settings"]["max_retries"] == 3
    made = unique("native")
    headers = {"content-type": "application/json"}
    settings = {"message_timeout": "90s"}
    status, _, body = server.http("PUT", f"/streams/{stream}/groups/{made}", settings, headers, native=True)
    assert status == 201, body
    assert client.get_subscription_info(made, stream).message_timeout == 90.0
    append(client, stream, 1)
    one = reading(made)
    one.ack(one.take(1)[0])
    eventually(lambda: client.get_subscription_info(made, stream).outstanding_messages_count == 0)


# A server that is killed


def test_nothing_acked_comes_again_after_the_server_was_killed(own_server: Any) -> None:
    stream, name = unique("orders"), unique("group")
    with KurrentDBClient(own_server.url) as client:
        append(client, stream, 10)
        client.create_subscription_to_stream(name, stream, max_retry_count=7, min_checkpoint_count=1000)
        one = Reading(client, name, stream, 10)
        for event in one.take(10)[:6]:
            one.ack(event)
        eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 4)
        # An ack is in the log with the next write, and this is one.
        append(client, stream, 1)
        own_server.kill()
        with pytest.raises(ServiceUnavailableError):
            one.wait_for_the_end()
        own_server.start()
    with KurrentDBClient(own_server.url) as client:
        info = client.get_subscription_info(name, stream)
        assert (info.max_retry_count, info.min_checkpoint_count) == (7, 1000)
        again = Reading(client, name, stream, 50)
        assert sorted(again.positions(5)) == [6, 7, 8, 9, 10]
        assert again.nothing_for(0.5)
        again.stop()


def test_retries_are_counted_across_a_kill(own_server: Any) -> None:
    stream, name = unique("orders"), unique("group")
    with KurrentDBClient(own_server.url) as client:
        append(client, stream, 1)
        client.create_subscription_to_stream(name, stream, max_retry_count=3)
        one = Reading(client, name, stream, 1)
        for count in range(2):
            (event,) = one.take(1)
            assert event.retry_count == count
            one.nack(event, "retry")
        assert one.take(1)[0].retry_count == 2
        # With the next write what was decided before it is in the log.
        append(client, unique("other"), 1)
        own_server.kill()
        own_server.start()
    with KurrentDBClient(own_server.url) as client:
        again = Reading(client, name, stream, 1)
        (event,) = again.take(1)
        assert event.retry_count in (2, 3), "the lease that the crash ended may count"
        for count in range(event.retry_count, 4):
            assert event.retry_count == count
            again.nack(event, "retry")
            if count < 3:
                (event,) = again.take(1)
        eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 1)
        again.stop()


def test_a_parked_event_is_parked_after_a_kill(own_server: Any) -> None:
    stream, name = unique("orders"), unique("group")
    with KurrentDBClient(own_server.url) as client:
        append(client, stream, 2)
        client.create_subscription_to_stream(name, stream)
        one = Reading(client, name, stream, 2)
        for event in one.take(2):
            one.nack(event, "park")
        eventually(lambda: client.get_subscription_info(name, stream).parked_message_count == 2)
        client.replay_parked_events(name, stream)
        # Brought back and not settled: a crash loses neither.
        assert len(one.take(2)) == 2
        own_server.kill()
        own_server.start()
    with KurrentDBClient(own_server.url) as client:
        again = Reading(client, name, stream, 2)
        info = client.get_subscription_info(name, stream)
        if info.parked_message_count > 0:
            client.replay_parked_events(name, stream)
        assert sorted(again.positions(2)) == [0, 1]
        again.stop()


# Over HTTP, as version 4 has it


def test_the_walk_through_over_http(client: KurrentDBClient, server: Any, stream: str) -> None:
    path = f"/subscriptions/{stream}/foo"
    settings = {"startFrom": 0, "maxRetryCount": 1, "messageTimeoutMilliseconds": 30000}
    status, headers, _ = server.http("PUT", path, settings)
    assert (status, headers["location"]) == (201, f"http://{server.address}{path}")
    assert server.http("PUT", path, settings)[0] == 409
    assert server.http("PUT", f"/subscriptions/{stream}/baz", {})[0] == 201
    append(client, stream, 3)
    accept = {"accept": "application/vnd.eventstore.competingatom+json"}
    status, headers, body = server.http("GET", f"{path}/3?embed=body", headers=accept)
    assert (status, headers["content-type"]) == (200, accept["accept"])
    feed = json.loads(body)
    assert [entry["eventNumber"] for entry in feed["entries"]] == [0, 1, 2]

    def link(of: Any, relation: str) -> str:
        (uri,) = [one["uri"] for one in of["links"] if one["relation"] == relation]
        return uri.removeprefix(f"http://{server.address}")

    assert server.http("POST", link(feed["entries"][0], "ack"), b"")[0] == 202
    assert server.http("POST", link(feed["entries"][1], "nack") + "?action=Park", b"")[0] == 202
    assert server.http("POST", link(feed["entries"][2], "nack") + "?action=Skip", b"")[0] == 202
    info = json.loads(server.http("GET", f"{path}/info")[2])
    assert (info["eventStreamId"], info["groupName"], info["parkedMessageCount"]) == (stream, "foo", 1)
    assert info["config"]["maxRetryCount"] == 1
    assert (info["lastKnownEventNumber"], info["outstandingMessagesCount"]) == (2, 0)
    assert server.http("POST", f"{path}/replayParked", b"")[0] == 200

    def pulled() -> bool:
        again = json.loads(server.http("GET", path, headers=accept)[2])["entries"]
        return bool(again) and server.http("POST", link(again[0], "ack"), b"")[0] == 202

    eventually(pulled)
    listed = json.loads(server.http("GET", f"/subscriptions/{stream}")[2])
    assert [one["groupName"] for one in listed] == ["baz", "foo"]
    assert listed[0]["connectionCount"] == 0
    assert stream in [one["eventStreamId"] for one in json.loads(server.http("GET", "/subscriptions")[2])]
    assert server.http("POST", path, {"maxRetryCount": 2})[0] == 200
    assert client.get_subscription_info("foo", stream).max_retry_count == 2
    assert server.http("DELETE", path)[0] == 200
    assert server.http("DELETE", path)[0] == 404
    assert server.http("GET", path)[0] == 404
    assert server.http("PUT", path, {"readBatchSize": 500, "bufferSize": 500})[0] == 400


def test_what_one_protocol_sends_the_other_answers_for(
    client: KurrentDBClient, server: Any, stream: str, group: Any, reading: Any
) -> None:
    append(client, stream, 2)
    name = group(consumer_strategy="RoundRobin")
    one = reading(name, buffer=1)
    (event,) = one.take(1)
    (entry,) = json.loads(server.http("GET", f"/subscriptions/{stream}/{name}?embed=rich")[2])["entries"]
    assert entry["eventNumber"] == 1
    assert server.http("POST", f"/subscriptions/{stream}/{name}/ack/{event.id}", b"")[0] == 202
    one.subscription.ack(UUID(entry["eventId"]))
    eventually(lambda: client.get_subscription_info(name, stream).outstanding_messages_count == 0)


# Links


def test_links_are_followed_if_the_subscription_says_so(
    client: KurrentDBClient, stream: str, group: Any, reading: Any
) -> None:
    target = unique("target")
    append(client, target, 2)
    links = [NewEvent(type="$>", data=f"{at}@{target}".encode()) for at in (1, 7)]
    plain = NewEvent(type="T", data=b"plain")
    client.append_to_stream(stream, events=[links[0], plain], current_version=StreamState.ANY)
    followed, as_it_is = reading(group(resolve_links=True)), reading(group())
    resolved, other = followed.take(2)
    assert (resolved.stream_name, resolved.stream_position, resolved.data) == (target, 1, b"1")
    assert resolved.link is not None and resolved.link.id == links[0].id
    assert other.id == plain.id and other.link is None
    followed.ack(resolved)
    followed.ack(other)
    (raw, _) = as_it_is.take(2)
    assert (raw.id, raw.type, raw.link) == (links[0].id, "$>", None)
