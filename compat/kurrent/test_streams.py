"""Streams, with the official client for Python."""

import json
import threading
import uuid

import pytest
from kurrentdbclient import KurrentDBClient, NewEvent, StreamState
from kurrentdbclient.exceptions import (
    FailedPreconditionError,
    MaximumAppendSizeExceededError,
    NotFoundError,
    ServiceUnavailableError,
    StreamIsDeletedError,
    WrongCurrentVersionError,
)


def event(number=0, **more):
    return NewEvent(type="Tested", data=json.dumps({"n": number}).encode(), **more)


def events(count):
    return [event(number) for number in range(count)]


def numbers(recorded):
    return [json.loads(one.data)["n"] for one in recorded]


# Append


def test_an_event_comes_back_as_it_was_appended(client, name):
    sent = NewEvent(type="Tested", data=b"\x00\xff", metadata=b'{"a": 1}', content_type="application/octet-stream")
    position = client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=sent)
    (got,) = client.get_stream(name)
    assert (got.id, got.type, got.data, got.metadata) == (sent.id, sent.type, sent.data, sent.metadata)
    assert (got.content_type, got.stream_name, got.stream_position) == (sent.content_type, name, 0)
    assert got.commit_position == position
    assert got.recorded_at is not None and got.link is None


@pytest.mark.parametrize("as_batch", [False, True])
def test_every_expected_version_is_checked(client, name, as_batch):
    def append(version, **more):
        one = event(**more)
        return client.append_to_stream(name, current_version=version, events=[one] if as_batch else one)

    with pytest.raises(WrongCurrentVersionError):
        append(0)
    with pytest.raises(WrongCurrentVersionError):
        append(StreamState.EXISTS)
    first = append(StreamState.NO_STREAM)
    with pytest.raises(WrongCurrentVersionError):
        append(StreamState.NO_STREAM)
    second = append(0)
    with pytest.raises(WrongCurrentVersionError):
        append(0)
    with pytest.raises(WrongCurrentVersionError):
        append(7)
    third = append(StreamState.EXISTS)
    fourth = append(StreamState.ANY)
    assert first < second < third < fourth
    assert client.get_current_version(name) == 3


def test_a_batch_is_stored_whole(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(500))
    got = client.get_stream(name)
    assert numbers(got) == list(range(500))
    assert [one.stream_position for one in got] == list(range(500))
    positions = [one.commit_position for one in got]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("version", [StreamState.NO_STREAM, StreamState.ANY, 1])
@pytest.mark.parametrize("as_batch", [False, True])
def test_a_write_that_is_repeated_is_answered_as_the_first_time(client, name, version, as_batch):
    if version == 1:
        client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(2))
    sent = events(3) if as_batch else event()
    first = client.append_to_stream(name, current_version=version, events=sent)
    count = len(client.get_stream(name))
    assert client.append_to_stream(name, current_version=version, events=sent) == first
    assert len(client.get_stream(name)) == count
    if as_batch:
        with pytest.raises(WrongCurrentVersionError):
            client.append_to_stream(name, current_version=version, events=[sent[0], event()])


def test_the_same_event_may_be_appended_twice_at_other_revisions(client, name):
    one = event()
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=one)
    client.append_to_stream(name, current_version=0, events=one)
    assert [got.id for got in client.get_stream(name)] == [one.id, one.id]


def test_an_event_that_is_too_large_is_refused(client, name):
    large = NewEvent(type="Large", data=b"x" * (10 << 20), content_type="application/octet-stream")
    with pytest.raises(MaximumAppendSizeExceededError):
        client.append_to_stream(name, current_version=StreamState.ANY, events=[large])
    with pytest.raises(NotFoundError):
        client.get_stream(name)
    fits = NewEvent(type="Large", data=b"x" * (1 << 20), content_type="application/octet-stream")
    client.append_to_stream(name, current_version=StreamState.ANY, events=[fits])
    assert client.get_stream(name)[0].data == fits.data


# Read


def test_a_stream_is_read_in_both_directions_from_any_place(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(10))
    read = lambda **options: numbers(client.get_stream(name, **options))  # noqa: E731
    assert read() == list(range(10))
    assert read(stream_position=7) == [7, 8, 9]
    assert read(stream_position=7, limit=2) == [7, 8]
    assert read(backwards=True) == list(range(9, -1, -1))
    assert read(backwards=True, limit=1) == [9]
    assert read(backwards=True, stream_position=2) == [2, 1, 0]
    assert read(backwards=True, stream_position=2, limit=1) == [2]
    assert read(backwards=True, stream_position=100, limit=2) == [9, 8]
    assert read(stream_position=100) == []


def test_a_stream_that_does_not_exist_is_not_found(client, name):
    with pytest.raises(NotFoundError):
        client.get_stream(name)
    with pytest.raises(NotFoundError):
        client.get_stream(name, backwards=True)
    assert client.get_current_version(name) is StreamState.NO_STREAM


def test_links_lead_to_events(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(2))
    links = [NewEvent(type="$>", data=f"{to}@{name}".encode()) for to in (1, 7)]
    client.append_to_stream(name + "-links", current_version=StreamState.NO_STREAM, events=links)
    plain = client.get_stream(name + "-links")
    assert [one.type for one in plain] == ["$>", "$>"]
    (resolved,) = client.get_stream(name + "-links", resolve_links=True)
    assert (resolved.stream_name, resolved.stream_position) == (name, 1)
    assert resolved.link is not None and resolved.link.stream_name == name + "-links"


# Subscribe


def take(subscription, count):
    return [next(subscription) for _ in range(count)]


def test_a_subscription_gets_old_and_new_events(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(3))
    with client.subscribe_to_stream(name) as subscription:
        assert numbers(take(subscription, 3)) == [0, 1, 2]
        client.append_to_stream(name, current_version=2, events=event(3))
        assert numbers(take(subscription, 1)) == [3]
    with client.subscribe_to_stream(name, stream_position=1) as subscription:
        assert numbers(take(subscription, 2)) == [2, 3], "the given position is not among them"
    with client.subscribe_to_stream(name, from_end=True) as subscription:
        client.append_to_stream(name, current_version=3, events=event(4))
        assert numbers(take(subscription, 1)) == [4]


def test_a_subscription_says_when_it_has_caught_up(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(2))
    with client.subscribe_to_stream(name, include_caught_up=True) as subscription:
        assert numbers(take(subscription, 2)) == [0, 1]
        assert type(next(subscription)).__name__ == "CaughtUp"
        client.append_to_stream(name, current_version=1, events=event(2))
        assert numbers(take(subscription, 1)) == [2]


def test_a_subscription_waits_for_a_stream_that_does_not_exist_yet(client, name):
    with client.subscribe_to_stream(name) as subscription:
        client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=event(7))
        assert numbers(take(subscription, 1)) == [7]


def test_many_subscriptions_share_a_connection(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=event())
    subscriptions = [client.subscribe_to_stream(name) for _ in range(300)]
    for subscription in subscriptions:
        assert numbers(take(subscription, 1)) == [0]
    for subscription in subscriptions:
        subscription.stop()


def test_a_subscription_ends_with_a_server_that_stops(own_server, name):
    with KurrentDBClient(own_server.url) as client:
        client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=event())
        subscription = client.subscribe_to_stream(name)
        take(subscription, 1)
        stopping = threading.Thread(target=own_server.stop)
        stopping.start()
        with pytest.raises(ServiceUnavailableError):
            next(subscription)
        stopping.join()


# Delete


def test_a_deleted_stream_can_be_written_again_and_keeps_its_numbers(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(3))
    with pytest.raises(WrongCurrentVersionError):
        client.delete_stream(name, current_version=7)
    client.delete_stream(name, current_version=2)
    with pytest.raises(NotFoundError):
        client.get_stream(name)
    with pytest.raises(WrongCurrentVersionError):
        client.append_to_stream(name, current_version=StreamState.EXISTS, events=event())
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=event(3))
    (got,) = client.get_stream(name)
    assert (got.stream_position, numbers([got])) == (3, [3])
    metadata, version = client.get_stream_metadata(name)
    assert (metadata["$tb"], version) == (3, 1)


@pytest.mark.parametrize("version", [StreamState.ANY, 1])
def test_a_deleted_stream_is_written_again_with_other_expectations(client, name, version):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(2))
    client.delete_stream(name, current_version=StreamState.ANY)
    client.delete_stream(name, current_version=StreamState.ANY)
    client.append_to_stream(name, current_version=version, events=event(2))
    assert [one.stream_position for one in client.get_stream(name)] == [2]


def test_a_stream_that_never_existed_cannot_be_deleted(client, name):
    for version in (StreamState.ANY, StreamState.NO_STREAM, 0):
        with pytest.raises(NotFoundError):
            client.delete_stream(name, current_version=version)


def test_a_tombstone_is_for_ever(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(2))
    with pytest.raises(WrongCurrentVersionError):
        client.tombstone_stream(name, current_version=7)
    client.tombstone_stream(name, current_version=1)
    for call in (
        lambda: client.get_stream(name),
        lambda: client.append_to_stream(name, current_version=StreamState.ANY, events=events(2)),
        lambda: client.delete_stream(name, current_version=StreamState.ANY),
        lambda: client.tombstone_stream(name, current_version=StreamState.ANY),
        lambda: next(client.subscribe_to_stream(name)),
    ):
        with pytest.raises(StreamIsDeletedError):
            call()
    # Of a single append the client tells no more than the kind of the refusal.
    with pytest.raises(FailedPreconditionError, match="is deleted"):
        client.append_to_stream(name, current_version=StreamState.ANY, events=event())


def test_a_tombstone_needs_no_stream_and_ends_subscriptions(client, name):
    client.tombstone_stream(name, current_version=StreamState.ANY)
    with pytest.raises(FailedPreconditionError, match="is deleted"):
        client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=event())
    other = name + "-other"
    client.append_to_stream(other, current_version=StreamState.NO_STREAM, events=event())
    with client.subscribe_to_stream(other) as subscription:
        take(subscription, 1)
        client.tombstone_stream(other, current_version=StreamState.ANY)
        with pytest.raises(StreamIsDeletedError):
            next(subscription)


# Metadata


def test_metadata_is_kept_with_a_version_of_its_own(client, name):
    assert client.get_stream_metadata(name) == ({}, StreamState.NO_STREAM)
    metadata = {"$cacheControl": 15, "$acl": {"$r": "$all"}, "own": {"a": [1]}}
    client.set_stream_metadata(name, metadata=metadata, current_version=StreamState.NO_STREAM)
    assert client.get_stream_metadata(name) == (metadata, 0)
    with pytest.raises(WrongCurrentVersionError):
        client.set_stream_metadata(name, metadata={}, current_version=StreamState.NO_STREAM)
    client.set_stream_metadata(name, metadata={"own": 2}, current_version=0)
    assert client.get_stream_metadata(name) == ({"own": 2}, 1)
    with pytest.raises(NotFoundError):
        client.get_stream(name)


def test_a_stream_keeps_as_many_events_as_its_metadata_says(client, name):
    client.set_stream_metadata(name, metadata={"$maxCount": 3}, current_version=StreamState.NO_STREAM)
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(10))
    assert numbers(client.get_stream(name)) == [7, 8, 9]
    client.set_stream_metadata(name, metadata={}, current_version=0)
    client.append_to_stream(name, current_version=9, events=event(10))
    assert numbers(client.get_stream(name)) == [7, 8, 9, 10]


def test_events_before_a_revision_are_dropped(client, name):
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(5))
    client.set_stream_metadata(name, metadata={"$tb": 3}, current_version=StreamState.NO_STREAM)
    assert numbers(client.get_stream(name)) == [3, 4]
    assert numbers(client.get_stream(name, backwards=True)) == [4, 3]


# Beside other protocols, and over restarts


def test_events_are_messages_of_the_native_api_and_the_other_way_round(server, client, name):
    sent = NewEvent(type="Tested", data=b'{"n": 1}', metadata=b'{"m": 1}')
    client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=sent)
    status, _, body = server.http("GET", f"/streams/{name}/messages", native=True)
    assert status == 200, body
    (message,) = json.loads(body)["messages"]
    assert (message["id"], message["type"], message["body"]) == (str(sent.id), "Tested", {"n": 1})
    own = str(uuid.uuid4())
    more = {"messages": [{"body": {"n": 2}, "id": own, "type": "Other", "headers": {"h": "1"}}, {"body": "text"}]}
    headers = {"content-type": "application/json"}
    status, _, body = server.http("POST", f"/streams/{name}/messages", more, headers, native=True)
    assert status in (200, 201), body
    _, second, third = client.get_stream(name)
    assert (str(second.id), second.type, json.loads(second.data)) == (own, "Other", {"n": 2})
    assert json.loads(second.metadata) == {"h": "1"}
    assert (third.type, third.stream_position) == ("message", 2)
    assert [one.id for one in client.get_stream(name)] == [sent.id, second.id, third.id], "ids stay"


def test_everything_is_there_after_a_kill(own_server, name):
    with KurrentDBClient(own_server.url) as client:
        client.append_to_stream(name, current_version=StreamState.NO_STREAM, events=events(5))
        client.append_to_stream(name + "-d", current_version=StreamState.NO_STREAM, events=events(2))
        client.append_to_stream(name + "-t", current_version=StreamState.NO_STREAM, events=events(2))
        client.delete_stream(name + "-d", current_version=1)
        client.tombstone_stream(name + "-t", current_version=1)
        client.set_stream_metadata(name, metadata={"$maxCount": 4}, current_version=StreamState.NO_STREAM)
    own_server.kill()
    own_server.start()
    with KurrentDBClient(own_server.url) as client:
        assert numbers(client.get_stream(name)) == [1, 2, 3, 4]
        with pytest.raises(NotFoundError):
            client.get_stream(name + "-d")
        with pytest.raises(StreamIsDeletedError):
            client.get_stream(name + "-t")
        client.append_to_stream(name + "-d", current_version=StreamState.NO_STREAM, events=event(2))
        assert [one.stream_position for one in client.get_stream(name + "-d")] == [2]


def test_the_server_is_found_as_the_leader(server):
    with KurrentDBClient(f"esdb+discover://{server.address}?tls=false") as client:
        (member,) = client.read_gossip()
        assert (member.state, member.address, member.port) == ("NODE_STATE_LEADER", "127.0.0.1", server.port)
