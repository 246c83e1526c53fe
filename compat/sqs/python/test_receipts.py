"""Visibility, and receipts that are current, superseded, expired, deleted, or of another queue."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conftest import MakeQueue
from support.row import containing
from support.server import Server
from support.use import bodies, delete, receive, send, visibility, wait_for

OUT_OF_SIGHT = 1


def expire() -> None:
    time.sleep(OUT_OF_SIGHT + 0.3)


def gone(handle: str) -> str:
    reason = "Message does not exist or is not available for visibility timeout change."
    return f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {reason}"


def expired(handle: str) -> str:
    return f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."


@pytest.mark.plays("4.2-visible-again")
def test_a_message_is_out_of_sight_for_a_while(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(VisibilityTimeout=str(OUT_OF_SIGHT))
    send(sqs, url, "a")
    assert len(receive(sqs, url)) == 1
    assert server.counts(url) == (0, 1, 0)
    assert receive(sqs, url) == []
    [found] = wait_for(sqs, url, AttributeNames=["ApproximateReceiveCount"])
    assert found["Attributes"]["ApproximateReceiveCount"] == "2"


@pytest.mark.plays("2.10-delete")
def test_a_deleted_message_does_not_come_back(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(VisibilityTimeout=str(OUT_OF_SIGHT))
    for call in (server.json, server.query):
        send(sqs, url, "a")
        [held] = receive(sqs, url)
        assert call("DeleteMessage", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"]).is_ok
    assert server.counts(url) == (0, 0, 0)
    assert receive(sqs, url, WaitTimeSeconds=2) == []


@pytest.mark.plays("2.10-again")
def test_a_message_is_deleted_as_often_as_you_like(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")
    [held] = receive(sqs, url)
    for call in (server.json, server.query, server.json, server.query):
        assert call("DeleteMessage", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"]).is_ok


@pytest.mark.plays("2.10-other-queue")
def test_a_receipt_is_good_for_its_queue_only(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url, other = queue(), queue()
    send(sqs, url, "a")
    [held] = receive(sqs, url)
    handle = held["ReceiptHandle"]
    text = f'The input receipt handle "{handle}" is not a valid receipt handle.'
    arguments = {"QueueUrl": other, "ReceiptHandle": handle}
    server.refuses("DeleteMessage", arguments, "ReceiptHandleIsInvalid", text)
    server.refuses(
        "ChangeMessageVisibility", {**arguments, "VisibilityTimeout": 0}, "ReceiptHandleIsInvalid", text
    )
    assert server.counts(url) == (0, 1, 0)


@pytest.mark.plays("2.10-expired-on-standard")
def test_the_latest_receipt_deletes_after_its_time(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(VisibilityTimeout=str(OUT_OF_SIGHT))
    send(sqs, url, "a")
    [held] = receive(sqs, url)
    expire()
    delete(sqs, url, held)
    assert server.counts(url) == (0, 0, 0)


@pytest.mark.plays("2.10-superseded")
def test_a_receipt_that_was_superseded_is_taken_without_a_word(
    server: Server, sqs: Any, queue: MakeQueue
) -> None:
    url = queue()
    send(sqs, url, "a")
    [first] = receive(sqs, url, VisibilityTimeout=0)
    [second] = receive(sqs, url, VisibilityTimeout=60)
    assert first["ReceiptHandle"] != second["ReceiptHandle"]
    for call in (server.json, server.query):
        assert call("DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"]).is_ok
    delete(sqs, url, second)
    assert server.counts(url) == (0, 0, 0)


@pytest.mark.plays("2.10-expired-on-fifo", "2.11-expired-on-fifo")
def test_a_receipt_of_a_fifo_queue_expires(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(VisibilityTimeout=str(OUT_OF_SIGHT))
    send(sqs, url, "a", group="g")
    [held] = receive(sqs, url)
    expire()
    handle = held["ReceiptHandle"]
    arguments = {"QueueUrl": url, "ReceiptHandle": handle}
    server.refuses("DeleteMessage", arguments, "InvalidParameterValue", expired(handle))
    for call in (server.json, server.query):
        entries = [{"Id": "1", "ReceiptHandle": handle}]
        [failed] = call("DeleteMessageBatch", QueueUrl=url, Entries=entries).result["Failed"]
        assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("1", "InvalidParameterValue", True)
    assert bodies(receive(sqs, url)) == ["a"]


@pytest.mark.plays("2.10-extended-on-fifo", "2.12-extended")
def test_a_receipt_that_was_extended_in_time_works(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(VisibilityTimeout=str(OUT_OF_SIGHT))
    send(sqs, url, "a", group="g")
    [held] = receive(sqs, url)
    visibility(sqs, url, held, 30)
    expire()
    assert receive(sqs, url) == []
    delete(sqs, url, held)
    assert server.counts(url) == (0, 0, 0)


@pytest.mark.plays("2.11-batch")
def test_a_batch_deletes_what_it_can(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    for call in (server.json, server.query):
        send(sqs, url, "a", "b")
        first, second = wait_for(sqs, url, 2)
        entries = [
            {"Id": "first", "ReceiptHandle": first["ReceiptHandle"]},
            {"Id": "wrong", "ReceiptHandle": "nothing"},
            {"Id": "second", "ReceiptHandle": second["ReceiptHandle"]},
        ]
        result = call("DeleteMessageBatch", QueueUrl=url, Entries=entries).result
        assert result["Successful"] == [{"Id": "first"}, {"Id": "second"}]
        [failed] = result["Failed"]
        assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("wrong", "ReceiptHandleIsInvalid", True)
    assert server.counts(url) == (0, 0, 0)


@pytest.mark.plays("2.12-release")
def test_a_message_is_released_at_once(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")
    for call in (server.json, server.query):
        [held] = receive(sqs, url)
        arguments = {"QueueUrl": url, "ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 0}
        assert call("ChangeMessageVisibility", **arguments).is_ok
        assert server.counts(url) == (1, 0, 0)


@pytest.mark.plays("2.12-from-now", "2.12-not-sticky")
def test_a_new_deadline_counts_from_now_and_only_once(sqs: Any, queue: MakeQueue) -> None:
    url = queue(VisibilityTimeout="30")
    send(sqs, url, "a")
    [held] = receive(sqs, url)
    visibility(sqs, url, held, 1)
    since = time.monotonic()
    assert len(wait_for(sqs, url)) == 1
    assert time.monotonic() - since > 0.8
    assert receive(sqs, url, WaitTimeSeconds=2) == []


@pytest.mark.plays("2.12-deleted")
@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_deleted_message_is_not_released(
    server: Server, sqs: Any, queue: MakeQueue, fifo: MakeQueue, is_fifo: bool
) -> None:
    url = fifo() if is_fifo else queue()
    send(sqs, url, "a", group="g" if is_fifo else None)
    [held] = receive(sqs, url)
    delete(sqs, url, held)
    handle = held["ReceiptHandle"]
    arguments = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0}
    server.refuses("ChangeMessageVisibility", arguments, "InvalidParameterValue", gone(handle))


@pytest.mark.plays("2.12-expired-on-standard")
def test_a_change_that_comes_late_is_no_error(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(VisibilityTimeout=str(OUT_OF_SIGHT))
    send(sqs, url, "a")
    [held] = receive(sqs, url)
    expire()
    for call in (server.json, server.query):
        arguments = {"QueueUrl": url, "ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 0}
        assert call("ChangeMessageVisibility", **arguments).is_ok


@pytest.mark.plays("2.12-twelve-hours")
def test_twelve_hours_are_the_most_in_all(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")
    [held] = receive(sqs, url)
    time.sleep(1.1)
    arguments = {"QueueUrl": url, "ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 43200}
    reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
    server.refuses("ChangeMessageVisibility", arguments, "InvalidParameterValue", containing(reason))
    visibility(sqs, url, held, 43100)


@pytest.mark.plays("2.13-batch")
def test_a_batch_changes_what_it_can(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a", "b")
    for call in (server.json, server.query):
        first, second = wait_for(sqs, url, 2)
        entries = [
            {"Id": "first", "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "wrong", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 43201},
        ]
        result = call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries).result
        assert result["Successful"] == [{"Id": "first"}]
        assert [(failed["Id"], failed["Code"]) for failed in result["Failed"]] == [("wrong", "InvalidParameterValue")]
        assert server.counts(url) == (1, 1, 0)
        visibility(sqs, url, second, 0)
