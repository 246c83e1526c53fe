"""FIFO queues: order, groups that block and rotate, deduplication, and receives that are tried again."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from conftest import MakeQueue
from support.server import Server, unique
from support.use import bodies, delete, receive, send, visibility, wait_for


def send_to(sqs: Any, url: str, *messages: str) -> None:
    """Each message is named after its group, a letter, and a number: `a1`."""
    for message in messages:
        send(sqs, url, message, group=message[0])


@pytest.mark.plays("4.4-one-group-first", "4.4-then-the-next")
@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "a1"), (2, "a1 a2"), (3, "a1 a2 b1"), (10, "a1 a2 b1 b2")],
)
def test_a_receive_fills_from_the_group_at_the_head(
    sqs: Any, fifo: MakeQueue, count: int, expected: str
) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "b1", "a2", "b2")
    assert bodies(receive(sqs, url, count)) == expected.split()


@pytest.mark.plays("4.4-blocked")
def test_a_group_waits_while_one_of_it_is_held(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2", "b1", "b2")
    assert bodies(receive(sqs, url, 1)) == ["a1"]
    assert bodies(receive(sqs, url, 1)) == ["b1"]
    assert receive(sqs, url) == []


@pytest.mark.plays("4.4-before-the-first-held")
def test_what_comes_before_the_first_held_message_is_given(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2", "a3")
    first, second = receive(sqs, url, 2)
    visibility(sqs, url, first, 0)
    [again] = receive(sqs, url)
    assert again["Body"] == "a1"
    visibility(sqs, url, second, 0)
    assert receive(sqs, url) == [], "a1 is held, and comes before"
    delete(sqs, url, again)
    assert bodies(receive(sqs, url)) == ["a2", "a3"]


@pytest.mark.plays("4.4-some-deleted")
def test_a_group_is_free_when_all_of_it_are_answered(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2", "a3")
    first, second = receive(sqs, url, 2)
    delete(sqs, url, second)
    assert receive(sqs, url) == []
    delete(sqs, url, first)
    assert bodies(receive(sqs, url)) == ["a3"]


@pytest.mark.plays("4.4-released-at-its-place")
def test_a_released_message_keeps_its_place(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2")
    [held] = receive(sqs, url, 1)
    visibility(sqs, url, held, 0)
    assert bodies(receive(sqs, url)) == ["a1", "a2"]


@pytest.mark.plays("4.4-expired-at-its-place")
def test_a_message_whose_time_is_over_keeps_its_place(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(VisibilityTimeout="1")
    send_to(sqs, url, "a1", "a2")
    assert bodies(receive(sqs, url, 1)) == ["a1"]
    assert bodies(receive(sqs, url, WaitTimeSeconds=5)) == ["a1", "a2"]


@pytest.mark.plays("4.4-groups-rotate")
def test_groups_take_turns(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2", "b1")
    seen = [bodies(receive(sqs, url, 1, VisibilityTimeout=0)) for _ in range(2)]
    assert seen == [["a1"], ["b1"]]


@pytest.mark.plays("3-fifo-counts")
def test_blocked_messages_count_as_visible(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2", "b1", "b2", "c1", "c2")
    receive(sqs, url, 1)
    receive(sqs, url, 1)
    assert server.counts(url) == (4, 2, 0)


@pytest.mark.plays("4.4-order")
def test_the_order_of_a_group_is_kept(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    expected = [f"a{n:02}" for n in range(25)]
    send_to(sqs, url, *expected)
    seen = []
    while len(seen) < 25:
        found = wait_for(sqs, url)
        seen += bodies(found)
        delete(sqs, url, *found)
    assert seen == expected


def duplicate(server: Server, url: str, **message: str) -> None:
    """Sends the same twice, by each protocol; one message comes of it."""
    first = server.json("SendMessage", QueueUrl=url, MessageGroupId="g", **message).result
    second = server.query("SendMessage", QueueUrl=url, MessageGroupId="g", **message).result
    names = ("MessageId", "SequenceNumber")
    assert [first[name] for name in names] == [second[name] for name in names]


@pytest.mark.plays("2.7-duplicate", "4.4-deduplication-explicit")
def test_a_duplicate_is_answered_and_not_delivered(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    duplicate(server, url, MessageBody="a", MessageDeduplicationId="d")
    assert bodies(receive(sqs, url)) == ["a"]
    assert server.counts(url) == (0, 1, 0)


@pytest.mark.plays("4.4-deduplication-by-content", "4.4-content-without-attributes")
def test_the_body_is_a_deduplication_id(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(ContentBasedDeduplication="true")
    duplicate(server, url, MessageBody="a")
    attributes = {"k": {"DataType": "String", "StringValue": "v"}}
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g", MessageAttributes=attributes)
    sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="g")
    assert bodies(receive(sqs, url)) == ["a", "b"]


@pytest.mark.plays("4.4-one-space", "4.4-explicit-before-content")
def test_an_id_and_the_hash_of_a_body_are_in_one_space(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(ContentBasedDeduplication="true")
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g")
    hashed = hashlib.sha256(b"a").hexdigest()
    sqs.send_message(QueueUrl=url, MessageBody="other", MessageGroupId="g", MessageDeduplicationId=hashed)
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g", MessageDeduplicationId="d")
    found = receive(sqs, url, AttributeNames=["MessageDeduplicationId"])
    assert [message["Attributes"]["MessageDeduplicationId"] for message in found] == [hashed, "d"]


@pytest.mark.plays("4.4-deduplication-outlives-deletion")
def test_deduplication_outlives_the_message(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    message = {"QueueUrl": url, "MessageBody": "a", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sqs.send_message(**message)
    delete(sqs, url, *receive(sqs, url))
    sqs.send_message(**message)
    assert server.counts(url) == (0, 0, 0)
    assert receive(sqs, url) == []


@pytest.mark.plays("2.14-forgets-duplicates")
def test_a_purge_forgets_what_was_sent(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    message = {"QueueUrl": url, "MessageBody": "a", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = sqs.send_message(**message)
    sqs.purge_queue(QueueUrl=url)
    assert receive(sqs, url) == []
    assert sqs.send_message(**message)["MessageId"] != first["MessageId"]
    assert bodies(receive(sqs, url)) == ["a"]


@pytest.mark.plays("4.4-scope-queue", "4.4-scope-group")
@pytest.mark.parametrize(("scope", "expected"), [("queue", ["a"]), ("messageGroup", ["a", "b"])])
def test_the_scope_of_deduplication(sqs: Any, fifo: MakeQueue, scope: str, expected: list[str]) -> None:
    url = fifo(DeduplicationScope=scope)
    for body in ("a", "b", "a"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body, MessageDeduplicationId="d")
    assert bodies(receive(sqs, url)) == expected


@pytest.mark.plays("4.4-scope-changed")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [("queue", "messageGroup", ["a"]), ("messageGroup", "queue", ["a", "b"])],
)
def test_a_new_scope_takes_its_time(
    sqs: Any, fifo: MakeQueue, before: str, after: str, expected: list[str]
) -> None:
    url = fifo(DeduplicationScope=before)
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="a", MessageDeduplicationId="d")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DeduplicationScope": after})
    sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="b", MessageDeduplicationId="d")
    assert bodies(receive(sqs, url)) == expected


def attempt(sqs: Any, url: str, one: str, **more: Any) -> list[tuple[str, str]]:
    found = receive(sqs, url, ReceiveRequestAttemptId=one, **more)
    return [(message["Body"], message["ReceiptHandle"]) for message in found]


@pytest.mark.plays("4.4-attempt-again", "4.4-attempt-resets-visibility")
def test_a_receive_that_is_tried_again_gives_the_same(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "a2", "b1")
    first = attempt(sqs, url, "r", VisibilityTimeout=1)
    assert [body for body, _ in first] == ["a1", "a2", "b1"]
    assert attempt(sqs, url, "r", VisibilityTimeout=60) == first
    assert receive(sqs, url, WaitTimeSeconds=2) == []
    delete(sqs, url, {"ReceiptHandle": first[0][1]})
    assert server.counts(url)[0] == 0


@pytest.mark.plays("4.4-attempt-after-delete")
def test_a_receive_is_a_new_one_after_a_delete(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1", "b1")
    [(body, handle)] = attempt(sqs, url, "r", count=1)
    delete(sqs, url, {"ReceiptHandle": handle})
    assert body == "a1"
    assert [body for body, _ in attempt(sqs, url, "r")] == ["b1"]


@pytest.mark.plays("4.4-attempt-other")
def test_another_attempt_is_another_receive(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send_to(sqs, url, "a1")
    assert len(attempt(sqs, url, unique())) == 1
    assert attempt(sqs, url, unique()) == []
