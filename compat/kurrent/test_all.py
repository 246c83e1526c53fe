"""Reads and subscriptions of all streams, with the official client for Python."""

import json

import pytest
from kurrentdbclient import KurrentDBClient, NewEvent, StreamState
from kurrentdbclient.events import CaughtUp, Checkpoint


def event(number=0, kind="Tested"):
    return NewEvent(type=kind, data=json.dumps({"n": number}).encode())


def numbers(recorded):
    return [json.loads(one.data)["n"] for one in recorded]


def append(client, stream, *numbered, kind="Tested"):
    new = [event(number, kind) for number in numbered]
    return client.append_to_stream(stream, current_version=StreamState.ANY, events=new)


def of(name):
    """Events of streams whose names begin so."""
    return {"filter_include": [name], "filter_by_stream_name": True, "filter_by_prefix": True}


def take(subscription, count):
    return [next(subscription) for _ in range(count)]


def test_all_streams_are_read_in_the_order_of_the_log(client, name):
    first = append(client, name + "-a", 0, 1)
    second = append(client, name + "-b", 2)
    third = append(client, name + "-a", 3)
    assert first < second < third
    read = lambda **options: list(client.read_all(**of(name), **options))  # noqa: E731
    forwards = read()
    assert numbers(forwards) == [0, 1, 2, 3]
    assert [one.stream_name for one in forwards] == [name + "-a", name + "-a", name + "-b", name + "-a"]
    assert [one.stream_position for one in forwards] == [0, 1, 0, 2]
    positions = [one.commit_position for one in forwards]
    assert positions[1:] == [first, second, third] and positions == sorted(set(positions))
    assert numbers(read(limit=2)) == [0, 1]
    assert numbers(read(commit_position=second)) == [2, 3], "forwards the position is among them"
    assert numbers(read(backwards=True)) == [3, 2, 1, 0]
    assert numbers(read(backwards=True, limit=1)) == [3]
    assert numbers(read(backwards=True, commit_position=second)) == [1, 0], "backwards it is not"


def test_the_default_filter_leaves_out_system_events(own_server, name):
    with KurrentDBClient(own_server.url) as client:
        assert list(client.read_all()) == []
        assert client.get_commit_position() == 0
        last = append(client, name, 0, 1)
        client.set_stream_metadata(name, metadata={"own": 1}, current_version=StreamState.NO_STREAM)
        assert numbers(client.read_all()) == [0, 1]
        assert client.get_commit_position() == last
        everything = list(client.read_all(filter_exclude=()))
        assert [one.type for one in everything] == ["Tested", "Tested", "$metadata"]
        assert everything[2].stream_name == "$$" + name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter_include": ["OrderPlaced", "Bill.*"]}, [0, 2]),
        ({"filter_include": ["Order"], "filter_by_prefix": True}, [0, 1]),
        ({"filter_exclude": ["Order.*"]}, [2]),
        ({"filter_include": ["NAME-a"], "filter_by_stream_name": True}, [0, 1]),
        ({"filter_include": ["NAME-[bc]"], "filter_by_stream_name": True}, [2]),
        ({"filter_include": ["Nothing"]}, []),
    ],
)
def test_filters_choose_by_type_or_stream(own_server, name, options, expected):
    with KurrentDBClient(own_server.url) as client:
        append(client, name + "-a", 0, kind="OrderPlaced")
        append(client, name + "-a", 1, kind="OrderShipped")
        append(client, name + "-b", 2, kind="Billed")
        if "filter_include" in options:
            options = options | {"filter_include": [text.replace("NAME", name) for text in options["filter_include"]]}
        assert numbers(client.read_all(**options)) == expected
        assert numbers(client.read_all(backwards=True, **options)) == expected[::-1]


def test_a_subscription_to_all_streams_gets_old_and_new_events(client, name):
    append(client, name + "-a", 0)
    second = append(client, name + "-b", 1)
    with client.subscribe_to_all(**of(name)) as subscription:
        assert numbers(take(subscription, 2)) == [0, 1]
        append(client, name + "-c", 2)
        assert numbers(take(subscription, 1)) == [2]
    with client.subscribe_to_all(**of(name), commit_position=second) as subscription:
        assert numbers(take(subscription, 1)) == [2], "the given position is not among them"
    with client.subscribe_to_all(**of(name), from_end=True) as subscription:
        append(client, name + "-a", 3)
        assert numbers(take(subscription, 1)) == [3]


def test_a_subscription_that_passes_nothing_gets_checkpoints(own_server, name):
    with KurrentDBClient(own_server.url) as client:
        append(client, name, *range(200))
        end = client.get_commit_position()
        options = {"filter_include": ["Nothing"], "include_checkpoints": True, "include_caught_up": True}
        with client.subscribe_to_all(**options, window_size=10, checkpoint_interval_multiplier=2) as subscription:
            seen = take(subscription, 1)
            while not isinstance(seen[-1], CaughtUp):
                seen += take(subscription, 1)
            checkpoints = [one for one in seen if isinstance(one, Checkpoint)]
            assert checkpoints and checkpoints[-1].commit_position == end
            assert seen[-1].commit_position == end
            for _ in range(3):
                end = append(client, name, *range(20))
                (checkpoint,) = take(subscription, 1)
                assert isinstance(checkpoint, Checkpoint) and checkpoint.commit_position == end


def test_a_subscription_goes_on_at_its_checkpoint_after_a_kill(own_server, name):
    with KurrentDBClient(own_server.url) as client:
        append(client, name, *range(50))
        with client.subscribe_to_all() as subscription:
            seen = take(subscription, 20)
    own_server.kill()
    own_server.start()
    with KurrentDBClient(own_server.url) as client:
        append(client, name, 50)
        with client.subscribe_to_all(commit_position=seen[-1].commit_position) as subscription:
            assert numbers(seen + take(subscription, 31)) == list(range(51))
