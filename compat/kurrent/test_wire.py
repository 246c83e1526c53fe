"""Requests made by hand, field by field, for facts that no client shows: forms of ids, parts of answers, trailers,
writes in several requests. The messages are those of the Python client's package."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from google.protobuf import duration_pb2, empty_pb2, timestamp_pb2
from kurrentdbclient.protos.v1 import persistent_pb2 as groups
from kurrentdbclient.protos.v1 import persistent_pb2_grpc, shared_pb2, streams_pb2, streams_pb2_grpc

PATIENCE = 20.0
NONE = shared_pb2.Empty()
GONE = empty_pb2.Empty()
LARGEST = (1 << 64) - 1
TYPES = {"type": "Tested", "content-type": "application/json"}


class Wire:
    """A channel to a server, with what each service offers."""

    def __init__(self, address: str, *options: tuple[str, int]) -> None:
        self.channel = grpc.insecure_channel(address, options=list(options))
        self.streams = streams_pb2_grpc.StreamsStub(self.channel)
        self.groups = persistent_pb2_grpc.PersistentSubscriptionsStub(self.channel)

    def append(self, stream: str, events: Iterable[Any], expected: dict[str, Any] | None = None, **call: Any) -> Any:
        options = streams_pb2.AppendReq.Options(stream_identifier=named(stream), **(expected or {"any": NONE}))
        requests = [streams_pb2.AppendReq(options=options)]
        requests += [streams_pb2.AppendReq(proposed_message=one) for one in events]
        return self.streams.Append(iter(requests), timeout=PATIENCE, **call)

    def batch(self, requests: Iterable[Any]) -> list[Any]:
        return list(self.streams.BatchAppend(iter(list(requests)), timeout=PATIENCE))

    def read(self, stream: str | None, form: str = "string", **options: Any) -> Iterator[Any]:
        """The answers to a read of a stream, or of all, as they come."""
        Options = streams_pb2.ReadReq.Options
        asked = options.pop("of", {"start": NONE})
        if stream is None:
            of = {"all": Options.AllOptions(**asked)}
        else:
            of = {"stream": Options.StreamOptions(stream_identifier=named(stream), **asked)}
        uuid_option = Options.UUIDOption(**{form: NONE})
        if "filter" not in options:
            options["no_filter"] = NONE
        request = Options(uuid_option=uuid_option, **of, **options)
        return self.streams.Read(streams_pb2.ReadReq(options=request), timeout=PATIENCE)

    def follow(self, stream: str | None, **options: Any) -> Iterator[Any]:
        return self.read(stream, subscription=streams_pb2.ReadReq.Options.SubscriptionOptions(), **options)

    def create(self, stream: str, group: str, start: dict[str, Any] | None = None, **settings: Any) -> Any:
        of = groups.CreateReq.StreamOptions(stream_identifier=named(stream), **(start or {"start": NONE}))
        return self.create_with(stream=of, group_name=group, settings=settings_of(**settings))

    def create_with(self, **options: Any) -> Any:
        return self.groups.Create(groups.CreateReq(options=groups.CreateReq.Options(**options)), timeout=PATIENCE)

    def info(self, stream: str, group: str) -> Any:
        options = groups.GetInfoReq.Options(stream_identifier=named(stream), group_name=group)
        return self.groups.GetInfo(groups.GetInfoReq(options=options), timeout=PATIENCE).subscription_info

    def delete(self, stream: str, **expected: Any) -> Any:
        options = streams_pb2.DeleteReq.Options(stream_identifier=named(stream), **expected)
        return self.streams.Delete(streams_pb2.DeleteReq(options=options), timeout=PATIENCE)

    def tombstone(self, stream: str, **expected: Any) -> Any:
        options = streams_pb2.TombstoneReq.Options(stream_identifier=named(stream), **expected)
        return self.streams.Tombstone(streams_pb2.TombstoneReq(options=options), timeout=PATIENCE)


def named(stream: str) -> Any:
    return shared_pb2.StreamIdentifier(stream_name=stream.encode())


def text(id: UUID) -> Any:
    return shared_pb2.UUID(string=str(id))


def structured(id: UUID) -> Any:
    signed = [int.from_bytes(half, "big", signed=True) for half in (id.bytes[:8], id.bytes[8:])]
    halves = shared_pb2.UUID.Structured(most_significant_bits=signed[0], least_significant_bits=signed[1])
    return shared_pb2.UUID(structured=halves)


def event(id: Any = None, data: bytes = b"{}", metadata: dict[str, str] | None = None, **more: Any) -> Any:
    kinds = TYPES if metadata is None else metadata
    return streams_pb2.AppendReq.ProposedMessage(id=id or text(uuid4()), metadata=kinds, data=data, **more)


def part(of: Any, stream: str | None = None, events: int = 1, final: bool = True, **options: Any) -> Any:
    """A request of a batch. One with a stream begins a write."""
    Req = streams_pb2.BatchAppendReq
    begun = None
    if stream is not None:
        options.setdefault("any", GONE)
        if {"stream_position", "no_stream", "stream_exists"} & set(options):
            del options["any"]
        begun = Req.Options(stream_identifier=named(stream), **options)
    messages = [Req.ProposedMessage(id=text(uuid4()), metadata=TYPES, data=b"{}") for _ in range(events)]
    return Req(correlation_id=of, options=begun, proposed_messages=messages, is_final=final)


def settings_of(**given: Any) -> Any:
    usual: dict[str, Any] = dict(
        message_timeout_ms=30_000, checkpoint_after_ms=2_000, max_retry_count=10, min_checkpoint_count=10,
        max_checkpoint_count=1_000, live_buffer_size=500, read_batch_size=20, history_buffer_size=500,
        consumer_strategy="RoundRobin",
    )  # fmt: skip
    usual.update(given)
    return groups.CreateReq.Settings(**{name: value for name, value in usual.items() if value is not None})


def refusal(call: Any) -> grpc.RpcError:
    """The error of a call, once it has been made and its answers were read."""
    with pytest.raises(grpc.RpcError) as caught:
        answered = call()
        if isinstance(answered, Iterator):
            list(answered)
    return caught.value


def trailers(error: Any) -> dict[str, str]:
    return dict(error.trailing_metadata())


class Consuming:
    """A consumer whose requests are written by hand."""

    def __init__(
        self, wire: Wire, stream: str, group: str, buffer: int = 10, form: str = "string", **call: Any
    ) -> None:
        self.requests: queue.Queue[Any] = queue.Queue()
        Options = groups.ReadReq.Options
        uuid_option = Options.UUIDOption(**{form: NONE})
        options = Options(
            stream_identifier=named(stream), group_name=group, buffer_size=buffer, uuid_option=uuid_option
        )
        self.requests.put(groups.ReadReq(options=options))
        self.answers = wire.groups.Read(iter(self.requests.get, None), timeout=60, **call)
        self.confirmation = next(self.answers)

    def next(self) -> Any:
        return next(self.answers).event

    def ack(self, *ids: Any, id: bytes = b"") -> None:
        self.requests.put(groups.ReadReq(ack=groups.ReadReq.Ack(ids=ids, id=id)))

    def nack(self, action: Any, reason: str, *ids: Any) -> None:
        nack = groups.ReadReq.Nack(ids=ids, action=action, reason=reason)
        self.requests.put(groups.ReadReq(nack=nack))

    def half_close(self) -> None:
        self.requests.put(None)

    def stop(self) -> None:
        self.answers.cancel()
        self.half_close()


def eventually(condition: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def wire(server: Any) -> Iterator[Wire]:
    one = Wire(server.address)
    yield one
    one.channel.close()


# Connecting


def test_headers_of_clusters_and_users_change_nothing(wire: Wire, name: str) -> None:
    for number, header in enumerate(
        [("requires-leader", "true"), ("requires-leader", "false"), ("authorization", "Basic YWRtaW46Y2hhbmdlaXQ=")]
    ):
        answer = wire.append(name, [event()], metadata=[header])
        assert answer.success.current_revision == number


def test_a_connection_without_a_name_is_unknown(wire: Wire, name: str) -> None:
    wire.create(name, "g")
    one = Consuming(wire, name, "g")
    # Right after the confirmation the consumer is there.
    (connection,) = wire.info(name, "g").connections
    assert (connection.connection_name, connection.username) == ("<unknown>", "anonymous")
    one.stop()


def test_a_connection_with_many_pings_stays(server: Any, name: str) -> None:
    pings = [("grpc.keepalive_time_ms", 200), ("grpc.keepalive_timeout_ms", 5000)]
    without_calls = [("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
    wire = Wire(server.address, *pings, *without_calls)
    answers = wire.follow(name)
    assert next(answers).WhichOneof("content") == "confirmation"
    assert next(answers).WhichOneof("content") == "caught_up"
    time.sleep(3)
    wire.append(name, [event()])
    assert next(answers).event.event.stream_revision == 0, "the same call goes on"
    wire.channel.close()


def test_services_that_are_not_there_are_unimplemented(wire: Wire) -> None:
    for path in [
        "/event_store.client.monitoring.Monitoring/Stats",
        "/event_store.client.operations.Operations/RestartPersistentSubscriptions",
        "/event_store.client.operations.Operations/StartScavenge",
        "/event_store.client.users.Users/Details",
        "/event_store.client.projections.Projections/Create",
        "/event_store.client.redaction.Redaction/GetEventPositions",
        "/kurrentdb.protocol.v2.streams.StreamsService/AppendSession",
        "/grpc.health.v1.Health/Check",
    ]:
        call = wire.channel.unary_unary(path)
        assert refusal(lambda call=call: call(b"", timeout=PATIENCE)).code() == grpc.StatusCode.UNIMPLEMENTED, path


# Ids and names


def test_ids_are_taken_in_both_forms_and_given_in_the_form_asked_for(wire: Wire, name: str) -> None:
    known = UUID("11111111-2222-3333-4444-555555555555")
    other = uuid4()
    assert structured(known).structured.most_significant_bits == 1229782938533638963
    assert structured(known).structured.least_significant_bits == 4919150517987661141
    wire.append(name, [event(structured(known)), event(text(other))])
    as_text = [answer.event.event.id.string for answer in wire.read(name, count=2)]
    assert as_text == [str(known), str(other)]
    numbers = [answer.event.event.id for answer in wire.read(name, "structured", count=2)]
    assert numbers == [structured(known), structured(other)]
    wire.create(name, "g")
    one = Consuming(wire, name, "g", form="structured")
    first, second = one.next(), one.next()
    assert (first.event.id, second.event.id) == (structured(known), structured(other))
    # Any form of an id answers for it, the first field says nothing, and ids that are not held are ignored.
    one.ack(text(known), text(uuid4()), id=b"anything")
    one.ack(structured(other))
    eventually(lambda: wire.info(name, "g").outstanding_messages_count == 0)
    one.stop()


def test_names_of_streams_are_utf8(wire: Wire, name: str) -> None:
    stream = f"{name}-straße"
    wire.append(stream, [event()])
    (answer,) = wire.read(stream, count=9)
    assert answer.event.event.stream_identifier.stream_name.decode() == stream
    wrong = streams_pb2.AppendReq.Options(any=NONE)
    wrong.stream_identifier.stream_name = b"\xff\xfe"
    call = lambda: wire.streams.Append(iter([streams_pb2.AppendReq(options=wrong)]), timeout=PATIENCE)  # noqa: E731
    assert refusal(call).code() == grpc.StatusCode.INVALID_ARGUMENT


# Append


def test_every_part_of_an_answer_to_an_append_is_set(wire: Wire, name: str) -> None:
    nothing = wire.append(name, [])
    assert nothing.success.WhichOneof("current_revision_option") == "no_stream"
    assert nothing.success.WhichOneof("position_option") == "no_position"
    done = wire.append(name, [event(), event()]).success
    assert done.current_revision == 1
    assert done.position.commit_position == done.position.prepare_position > 0
    (_, last) = wire.read(name, count=9)
    assert last.event.event.commit_position == done.position.commit_position, "the position of the last event"
    for expected, old, new in [
        ({"revision": 7}, "expected_revision_20_6_0", "expected_revision"),
        ({"no_stream": NONE}, None, "expected_no_stream"),
    ]:
        answer = wire.append(name, [event()], expected)
        conflict = answer.wrong_expected_version
        assert answer.WhichOneof("result") == "wrong_expected_version"
        assert (conflict.current_revision, conflict.current_revision_20_6_0) == (1, 1)
        assert conflict.WhichOneof("expected_revision_option") == new
        assert conflict.WhichOneof("expected_revision_option_20_6_0") == old
    missing = wire.append(name + "-none", [event()], {"stream_exists": NONE}).wrong_expected_version
    assert missing.WhichOneof("current_revision_option") == "current_no_stream"
    assert missing.WhichOneof("current_revision_option_20_6_0") == "no_stream_20_6_0"
    assert missing.WhichOneof("expected_revision_option") == "expected_stream_exists"
    assert missing.WhichOneof("expected_revision_option_20_6_0") == "stream_exists_20_6_0"


def test_events_have_their_metadata(wire: Wire, name: str) -> None:
    before = time.time_ns() // 100
    more = {**TYPES, "content-type": "text/plain", "unheard": "of"}
    wire.append(name, [event(), event(metadata=more, custom_metadata=b"\x00any bytes")])
    first, second = [answer.event for answer in wire.read(name, count=LARGEST)]
    assert dict(first.event.metadata).keys() == {"type", "content-type", "created"}
    assert (first.event.metadata["type"], first.event.metadata["content-type"]) == ("Tested", "application/json")
    assert before <= int(first.event.metadata["created"]) <= time.time_ns() // 100, "ticks of 100 ns"
    assert second.event.metadata["content-type"] == "application/octet-stream"
    assert second.event.custom_metadata == b"\x00any bytes"
    for one in (first, second):
        assert one.commit_position == one.event.commit_position == one.event.prepare_position > 0
        assert not one.HasField("link")


def test_an_append_begins_with_its_options(wire: Wire, name: str) -> None:
    only_event = [streams_pb2.AppendReq(proposed_message=event())]
    call = lambda: wire.streams.Append(iter(only_event), timeout=PATIENCE)  # noqa: E731
    assert refusal(call).code() == grpc.StatusCode.INVALID_ARGUMENT
    for missing in TYPES:
        kinds = {key: value for key, value in TYPES.items() if key != missing}
        error = refusal(lambda kinds=kinds: wire.append(name, [event(), event(metadata=kinds)]))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert trailers(error)["exception"] == "missing-required-metadata-property"
        assert trailers(error)["required-metadata-properties"] == "type,content-type"
    (answer,) = wire.read(name, count=9)
    assert answer.WhichOneof("content") == "stream_not_found", "all events of an append are stored, or none"


# Batch append


def test_a_write_comes_in_several_requests(wire: Wire, name: str) -> None:
    first, second, unknown = text(uuid4()), structured(uuid4()), text(uuid4())
    answers = wire.batch(
        [
            part(first, name, 2, final=False, no_stream=GONE),
            part(second, name + "-other", 1, final=False),
            part(unknown, None, 5),
            part(first, None, 3, final=False),
            part(second, None, 1),
            part(first, None, 1),
        ]
    )
    by_id = {answer.correlation_id.SerializeToString(): answer for answer in answers}
    assert set(by_id) == {first.SerializeToString(), second.SerializeToString()}, "in the form that each came in"
    one, two = by_id[first.SerializeToString()], by_id[second.SerializeToString()]
    assert (one.success.current_revision, two.success.current_revision) == (5, 1)
    assert one.stream_identifier.stream_name.decode() == name
    assert one.success.position.commit_position > 0
    assert len(list(wire.read(name, count=LARGEST))) == 6


def test_a_write_without_its_last_request_is_not_stored(wire: Wire, name: str) -> None:
    assert wire.batch([part(text(uuid4()), name, 2, final=False)]) == []
    (answer,) = wire.read(name, count=9)
    assert answer.WhichOneof("content") == "stream_not_found"


def test_many_writes_of_a_call_are_answered_after_it_is_closed(wire: Wire, name: str) -> None:
    ids = [text(uuid4()) for _ in range(3_000)]
    answers = wire.batch(part(id, name, 1) for id in ids)
    assert {answer.correlation_id.string for answer in answers} == {id.string for id in ids}
    revisions = sorted(answer.success.current_revision for answer in answers)
    assert revisions == list(range(3_000)), "each is stored, and once"
    in_order = {answer.correlation_id.string: answer.success.current_revision for answer in answers}
    assert [in_order[id.string] for id in ids] == list(range(3_000)), "in the order of the requests"


def test_writes_that_come_together_keep_their_expectations(wire: Wire, name: str) -> None:
    ids = [text(uuid4()) for _ in range(50)]
    writes = [part(ids[0], name, 1, no_stream=GONE)]
    writes += [part(id, name, 1, stream_position=number) for number, id in enumerate(ids[1:])]
    # Each of these expects a state that the write before it has changed.
    late = [text(uuid4()) for _ in range(10)]
    writes += [part(id, name, 1, stream_position=number) for number, id in enumerate(late)]
    by_id = {answer.correlation_id.string: answer for answer in wire.batch(writes)}
    assert [by_id[id.string].success.current_revision for id in ids] == list(range(50))
    assert {by_id[id.string].error.message for id in late} == {"WrongExpectedVersion"}
    # The same writes again, as a client does that did not see the answers.
    again = {answer.correlation_id.string: answer for answer in wire.batch(writes)}
    assert [again[id.string].success.current_revision for id in ids] == list(range(50))
    assert len(list(wire.read(name, count=LARGEST))) == 50


def test_a_refusal_in_a_batch_has_a_type(wire: Wire, name: str) -> None:
    wire.append(name, [event()])
    wire.append(name + "-gone", [event()])
    wire.tombstone(name + "-gone", any=NONE)
    large = part(text(uuid4()), name)
    large.proposed_messages[0].data = b"x" * (3 << 20)
    without_type = part(text(uuid4()), name)
    del without_type.proposed_messages[0].metadata["type"]
    past = timestamp_pb2.Timestamp(seconds=1)
    for request, message, code in [
        (part(text(uuid4()), name, no_stream=GONE), "WrongExpectedVersion", 6),
        (part(text(uuid4()), name + "-gone"), "StreamDeleted", 5),
        (part(text(uuid4()), name, deadline=duration_pb2.Duration(seconds=0)), "Timeout", 4),
        (part(text(uuid4()), name, deadline=duration_pb2.Duration(seconds=-5)), "Timeout", 4),
        (part(text(uuid4()), name, deadline_21_10_0=past), "Timeout", 4),
        (large, "MaximumAppendEventSizeExceeded", 3),
        (part(text(uuid4()), name, events=10_001), "MaximumAppendSizeExceeded", 3),
        (without_type, "BadRequest", 3),
    ]:
        (answer,) = wire.batch([request])
        assert answer.WhichOneof("result") == "error", message
        assert (answer.error.message, answer.error.code) == (message, code)
        assert answer.error.details.type_url == f"type.googleapis.com/event_store.client.{message}"
        assert answer.correlation_id == request.correlation_id
        assert answer.stream_identifier == request.options.stream_identifier
    conflict = shared_pb2.WrongExpectedVersion()
    (answer,) = wire.batch([part(text(uuid4()), name, no_stream=GONE)])
    assert answer.error.details.Unpack(conflict)
    assert conflict.current_stream_revision == 0
    assert conflict.WhichOneof("expected_stream_position_option") == "expected_no_stream"
    for forever in [315_576_000_000, int(time.time())]:
        (answer,) = wire.batch([part(text(uuid4()), name, deadline=duration_pb2.Duration(seconds=forever))])
        assert answer.WhichOneof("result") == "success"


# Read


def kinds(answers: Iterable[Any]) -> list[str]:
    return [answer.WhichOneof("content") for answer in answers]


def test_the_last_position_is_told_to_clients_that_know_it(wire: Wire, name: str) -> None:
    wire.append(name, [event(), event()])
    control = streams_pb2.ReadReq.Options.ControlOption(compatibility=1)
    assert kinds(wire.read(name, count=(1 << 63) - 1)) == ["event", "event"]
    assert kinds(wire.read(name, count=LARGEST, control_option=control)) == ["event", "event", "last_stream_position"]


def test_a_subscription_says_where_it_is_when_it_has_caught_up(wire: Wire, name: str) -> None:
    empty = wire.follow(name)
    assert next(empty).WhichOneof("content") == "confirmation"
    caught_up = next(empty).caught_up
    assert caught_up.timestamp.seconds > 0 and not caught_up.HasField("stream_revision")
    wire.append(name, [event()])
    one = wire.follow(name)
    assert next(one).confirmation.subscription_id
    assert next(one).WhichOneof("content") == "event"
    assert next(one).caught_up.stream_revision == 0
    prefix = streams_pb2.ReadReq.Options.FilterOptions.Expression(prefix=[name])
    of_name = streams_pb2.ReadReq.Options.FilterOptions(
        stream_identifier=prefix, count=NONE, checkpointIntervalMultiplier=1
    )
    seen = []
    for answer in wire.follow(None, filter=of_name):
        seen.append(answer)
        if answer.WhichOneof("content") == "caught_up":
            break
    assert seen[0].WhichOneof("content") == "confirmation"
    assert kinds(seen)[-2:] == ["checkpoint", "caught_up"], "a filter is told how far it is when it goes live"
    assert seen[-1].caught_up.position.commit_position == seen[-2].checkpoint.commit_position
    assert "event" in kinds(seen)
    zero = streams_pb2.ReadReq.Options.FilterOptions(stream_identifier=prefix, max=1, checkpointIntervalMultiplier=0)
    assert refusal(lambda: wire.follow(None, filter=zero)).code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_link_without_its_event_comes_alone(wire: Wire, name: str) -> None:
    link = {"type": "$>", "content-type": "application/octet-stream"}
    wire.append(name, [event(metadata=link, data=f"7@{name}-none".encode())])
    (plain,) = wire.read(name, count=9)
    assert plain.event.HasField("event") and not plain.event.HasField("link")
    (alone,) = wire.read(name, count=9, resolve_links=True)
    assert alone.event.HasField("link") and not alone.event.HasField("event")
    wire.create(name, "g", resolve_links=True)
    one = Consuming(wire, name, "g")
    held = one.next()
    assert held.HasField("link") and not held.HasField("event")
    one.ack(held.link.id)
    eventually(lambda: wire.info(name, "g").outstanding_messages_count == 0)
    one.stop()


def test_a_position_between_two_events_is_a_position(wire: Wire, name: str) -> None:
    last = wire.append(name, [event(), event()]).success.position.commit_position
    Position = streams_pb2.ReadReq.Options.Position
    beyond = Position(commit_position=last + 1_000_000, prepare_position=last + 1_000_000)
    assert list(wire.read(None, of={"position": beyond}, count=1)) == []
    here = Position(commit_position=last, prepare_position=last)
    (inclusive,) = wire.read(None, of={"position": here}, count=1)
    assert inclusive.event.event.commit_position == last
    (exclusive,) = wire.read(None, of={"position": here}, count=1, read_direction="Backwards")
    assert exclusive.event.event.commit_position < last


# Delete


def test_a_deletion_answers_its_position_and_a_conflict_its_versions(wire: Wire, name: str) -> None:
    wire.append(name, [event(), event()])
    error = refusal(lambda: wire.delete(name, revision=7))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    sentence = "Delete failed due to WrongExpectedVersion. Stream: {}, Expected version: {}, Actual version: {}"
    assert error.details() == sentence.format(name, 7, 1)
    found = trailers(error)
    assert found["exception"] == "wrong-expected-version"
    assert (found["stream-name"], found["expected-version"], found["actual-version"]) == (name, "7", "1")
    assert wire.delete(name, revision=1).position.commit_position > 0
    wire.delete(name, revision=1)
    missing = refusal(lambda: wire.delete(name + "-none", no_stream=NONE))
    assert missing.details() == sentence.format(name + "-none", -1, -1)
    # Metadata says so, as a read of it shows.
    (answer,) = wire.read(f"$${name}", of={"end": NONE}, count=1, read_direction="Backwards")
    assert json.loads(answer.event.event.data)["$tb"] == (1 << 63) - 1
    assert answer.event.event.metadata["type"] == "$metadata"


# Refusals


def test_each_refusal_has_its_trailers(wire: Wire, name: str) -> None:
    wire.append(name, [event()])
    wire.create(name, "g", max_subscriber_count=1)
    one = Consuming(wire, name, "g")
    gone = name + "-gone"
    wire.tombstone(gone, any=NONE)
    of_group = {"stream-name": name, "group-name": "g"}
    missing = {"stream-name": name, "group-name": "none"}
    large = event(data=b"x" * (3 << 20))
    code = grpc.StatusCode
    listed = groups.ListReq.Options(list_for_stream=groups.ListReq.StreamOption(stream=named(gone + "-none")))
    for call, status, exception, keys, message in [
        (lambda: wire.read(gone, count=1), code.FAILED_PRECONDITION, "stream-deleted", {"stream-name": gone},
         f"Event stream '{gone}' is deleted."),
        (lambda: wire.append(gone, [event()]), code.FAILED_PRECONDITION, "stream-deleted", {"stream-name": gone},
         f"Event stream '{gone}' is deleted."),
        (lambda: wire.append(name, [large]), code.INVALID_ARGUMENT, "maximum-append-event-size-exceeded",
         {"event-id": large.id.string, "maximum-append-event-size": str(3 << 19)}, None),
        (lambda: wire.append(name, [event(data=b"x" * (1 << 20)) for _ in range(9)]), code.INVALID_ARGUMENT,
         "maximum-append-size-exceeded", {"maximum-append-size": str(8 << 20)}, None),
        (lambda: wire.create(name, "g"), code.ALREADY_EXISTS, "persistent-subscription-exists", of_group,
         f"Subscription group g on stream {name} exists."),
        (lambda: wire.info(name, "none"), code.NOT_FOUND, "persistent-subscription-does-not-exist", missing,
         f"Subscription group none on stream {name} does not exist."),
        (lambda: wire.groups.List(groups.ListReq(options=listed), timeout=PATIENCE), code.NOT_FOUND,
         "persistent-subscription-does-not-exist", {"stream-name": gone + "-none", "group-name": ""}, None),
        (lambda: wire.create(name, "h", read_batch_size=500), code.INTERNAL, "persistent-subscription-failed",
         {"stream-name": name, "group-name": "h",
          "reason": "read_batch_size must be less than history_buffer_size (500). value=`500`"},
         None),
        (lambda: wire.create("", "h"), code.INTERNAL, "persistent-subscription-failed", {"group-name": "h"}, None),
        (lambda: Consuming(wire, name, "g"), code.FAILED_PRECONDITION, "maximum-subscribers-reached", of_group,
         f"Maximum subscriptions reached for subscription group g on stream {name}."),
    ]:  # fmt: skip
        error = refusal(call)
        found = trailers(error)
        assert (error.code(), found["exception"]) == (status, exception)
        assert {key: found[key] for key in keys} == keys
        assert message is None or error.details() == message
        assert "grpc-status-details-bin" not in found
    delete = groups.DeleteReq.Options(stream_identifier=named(name), group_name="g")
    wire.groups.Delete(groups.DeleteReq(options=delete), timeout=PATIENCE)
    # One event may be on its way before the end.
    error = refusal(lambda: list(one.answers))
    assert (error.code(), trailers(error)["exception"]) == (code.CANCELLED, "persistent-subscription-dropped")
    assert error.details() == f"Subscription group g on stream {name} was dropped."
    assert {key: trailers(error)[key] for key in of_group} == of_group


# Persistent subscriptions


def test_starts_that_no_log_has_are_refused(wire: Wire) -> None:
    Position = groups.CreateReq.Position
    for commit, prepare in [(1, 2), (1 << 62, 1 << 62)]:
        of = groups.CreateReq.AllOptions(
            position=Position(commit_position=commit, prepare_position=prepare), no_filter=NONE
        )
        group = f"group-{uuid4()}"
        error = refusal(
            lambda of=of, group=group: wire.create_with(all=of, group_name=group, settings=settings_of())
        )
        assert (error.code(), trailers(error)["exception"]) == (
            grpc.StatusCode.INTERNAL,
            "persistent-subscription-failed",
        )


def test_a_create_in_the_oldest_form(wire: Wire, name: str) -> None:
    legacy = settings_of(
        revision=LARGEST, consumer_strategy=None, named_consumer_strategy="Pinned", message_timeout_ms=None,
        message_timeout_ticks=75_000_000, checkpoint_after_ms=None,
    )  # fmt: skip
    wire.create_with(stream_identifier=named(name), group_name="g", settings=legacy)
    info = wire.info(name, "g")
    assert (info.start_from, info.named_consumer_strategy) == ("-1", "Pinned")
    assert (info.message_timeout_milliseconds, info.check_point_after_milliseconds) == (7_500, 0)


def test_a_consumer_that_closes_its_side_goes_on(wire: Wire, name: str) -> None:
    wire.create(name, "g")
    one = Consuming(wire, name, "g", buffer=2)
    assert one.confirmation.subscription_confirmation.subscription_id == f"{name}::g"
    one.half_close()
    wire.append(name, [event(), event()])
    for revision in range(2):
        got = one.next()
        assert (got.event.stream_revision, got.WhichOneof("count"), got.retry_count) == (revision, "retry_count", 0)
        assert got.WhichOneof("position") == "commit_position"
    one.answers.cancel()


def test_an_event_is_acked_after_it_was_sent_again(wire: Wire, name: str) -> None:
    wire.append(name, [event()])
    wire.create(name, "g", message_timeout_ms=500)
    one = Consuming(wire, name, "g")
    first, again = one.next(), one.next()
    assert (first.event.id, first.retry_count, again.retry_count) == (again.event.id, 0, 1)
    one.ack(first.event.id)
    eventually(lambda: wire.info(name, "g").outstanding_messages_count == 0)
    assert wire.info(name, "g").parked_message_count == 0
    one.stop()


def parked(wire: Wire, name: str, call: str, **stop: Any) -> Any:
    Options = groups.ReplayParkedReq.Options
    options = Options(stream_identifier=named(name), group_name="g", **(stop or {"no_limit": NONE}))
    path = f"/event_store.client.persistent_subscriptions.PersistentSubscriptions/{call}"
    make = wire.channel.unary_unary(path, request_serializer=lambda request: request.SerializeToString())
    return make(groups.ReplayParkedReq(options=options), timeout=PATIENCE)


def test_parked_events_are_replayed_or_discarded_up_to_a_number(wire: Wire, name: str) -> None:
    wire.append(name, [event() for _ in range(5)])
    wire.create(name, "g")
    one = Consuming(wire, name, "g")
    Nack = groups.ReadReq.Nack
    one.nack(Nack.Park, "it is broken", *[one.next().event.id for _ in range(5)])
    eventually(lambda: wire.info(name, "g").parked_message_count == 5)
    stream = f"$persistentsubscription-{name}::g-parked"
    (entry, *_) = [answer.event.event for answer in wire.read(stream, count=9)]
    assert entry.metadata["type"] == "$>" and entry.data.decode() == f"0@{name}"
    reason = json.loads(entry.custom_metadata)
    assert reason["reason"] == "Client explicitly NAK'ed message.\nit is broken"
    assert reason["subscriptionEventNumber"] == 0 and "added" in reason
    error = refusal(lambda: parked(wire, name, "ReplayParked", stop_at=-1))
    assert trailers(error)["exception"] == "persistent-subscription-failed"
    parked(wire, name, "ReplayParked", stop_at=0)
    assert wire.info(name, "g").parked_message_count == 5
    parked(wire, name, "ReplayParked", stop_at=1)
    # A second one is not refused, and finds nothing that the first one has not taken.
    parked(wire, name, "ReplayParked", stop_at=0)
    replayed = one.next()
    assert (replayed.event.stream_revision, replayed.retry_count) == (0, 0)
    one.nack(Nack.Park, "again", replayed.event.id)
    eventually(lambda: wire.info(name, "g").parked_message_count == 5)
    parked(wire, name, "TruncateParked", stop_at=3)
    eventually(lambda: wire.info(name, "g").parked_message_count == 2)
    parked(wire, name, "TruncateParked")
    eventually(lambda: wire.info(name, "g").parked_message_count == 0)
    one.stop()


def test_figures_of_a_subscription_count_what_was_sent(wire: Wire, name: str) -> None:
    wire.append(name, [event() for _ in range(6)])
    wire.create(name, "g", resolve_links=True)
    one = Consuming(wire, name, "g", buffer=4, metadata=[("connection-name", "counter")])
    first, second, *_ = [one.next() for _ in range(4)]
    info = wire.info(name, "g")
    assert (info.event_source, info.group_name, info.resolve_link_tos) == (name, "g", True)
    assert (info.total_items, info.total_in_flight_messages, info.outstanding_messages_count) == (4, 4, 4)
    assert (info.last_checkpointed_event_position, info.last_known_event_position) == ("", "5")
    assert set(info.status.split(", ")) <= {"Behind", "Live"}
    (connection,) = info.connections
    assert (connection.connection_name, connection.total_items) == ("counter", 4)
    assert getattr(connection, "from").startswith("127.0.0.1:")
    assert (connection.available_slots, connection.in_flight_messages) == (0, 4)
    assert list(connection.observed_measurements) == [], "only with extra statistics"
    one.ack(first.event.id)
    one.nack(groups.ReadReq.Nack.Retry, "", second.event.id)
    again = {one.next().event.stream_revision for _ in range(2)}
    assert again == {1, 4}
    info = wire.info(name, "g")
    assert info.total_items == 6, "one that was sent again counts again"
    assert info.count_since_last_measurement == 2
    one.stop()


def test_bookkeeping_of_groups_is_in_no_stream(wire: Wire, name: str) -> None:
    wire.append(name, [event()])
    wire.create(name, "g", min_checkpoint_count=1, max_checkpoint_count=1)
    one = Consuming(wire, name, "g")
    one.ack(one.next().event.id)
    eventually(lambda: wire.info(name, "g").last_checkpointed_event_position == "0")
    one.stop()
    for stream in ["$persistentSubscriptionConfig", f"$persistentsubscription-{name}::g-checkpoint"]:
        assert kinds(wire.read(stream, count=1)) == ["stream_not_found"], stream
