"""Sending and receiving: what an answer holds, what a receiver is shown, and how long it waits."""

from __future__ import annotations

import socket
import threading
import time
import urllib.parse
import uuid
from typing import Any

import pytest

from conftest import MakeQueue
from support import digest, http
from support.server import Server, unique
from support.use import bodies, delete, receive, send, visibility, wait_for

TEXT = {"DataType": "String", "StringValue": "v"}


@pytest.mark.plays("2.7-answer", "2.9-message")
def test_a_message_arrives_as_it_was_sent(server: Server, queue: MakeQueue) -> None:
    url = queue()
    attributes = {
        "text": {"DataType": "String.x", "StringValue": "ü"},
        "number": {"DataType": "Number", "StringValue": "1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    for sends in (server.json, server.query):
        for receives in (server.json, server.query):
            sent = sends("SendMessage", QueueUrl=url, MessageBody="b\r\nü <&>\"'", MessageAttributes=attributes).result
            uuid.UUID(sent["MessageId"])
            assert sent["MD5OfMessageBody"] == digest.of_body("b\r\nü <&>\"'")
            assert sent["MD5OfMessageAttributes"] == digest.of_attributes(attributes)
            assert set(sent) == {"MessageId", "MD5OfMessageBody", "MD5OfMessageAttributes"}
            [found] = receives("ReceiveMessage", QueueUrl=url, MessageAttributeNames=["All"]).result["Messages"]
            handle = found.pop("ReceiptHandle")
            assert found == {
                "MessageId": sent["MessageId"],
                "Body": "b\r\nü <&>\"'",
                "MD5OfBody": sent["MD5OfMessageBody"],
                "MessageAttributes": attributes,
                "MD5OfMessageAttributes": sent["MD5OfMessageAttributes"],
            }
            assert 0 < len(handle) <= 1024
            assert sends("DeleteMessage", QueueUrl=url, ReceiptHandle=handle).is_ok


@pytest.mark.plays("2.7-sequence-number")
def test_messages_of_a_fifo_queue_are_numbered(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    numbers = []
    for group in ("a", "b", "a", "a"):
        sent = sqs.send_message(
            QueueUrl=url, MessageBody="b", MessageGroupId=group, MessageDeduplicationId=unique()
        )
        numbers.append(sent["SequenceNumber"])
    assert all(len(number) == 20 and number.isdecimal() for number in numbers)
    assert numbers == sorted(set(numbers))


@pytest.mark.plays("2.7-delay", "2.7-delay-0-overrides")
def test_a_delay_of_a_message_counts_before_that_of_the_queue(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(DelaySeconds="900")
    sqs.send_message(QueueUrl=url, MessageBody="now", DelaySeconds=0)
    sqs.send_message(QueueUrl=url, MessageBody="soon", DelaySeconds=1)
    send(sqs, url, "later")
    assert server.counts(url) == (1, 0, 2)
    assert bodies(receive(sqs, url)) == ["now"]
    assert bodies(wait_for(sqs, url)) == ["soon"]


@pytest.mark.plays("2.7-delay-0-on-fifo-is-default")
def test_no_delay_on_a_fifo_queue_means_that_of_the_queue(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(DelaySeconds="900")
    sqs.send_message(
        QueueUrl=url, MessageBody="b", DelaySeconds=0, MessageGroupId="g", MessageDeduplicationId="d"
    )
    assert server.counts(url) == (0, 0, 1)


@pytest.mark.plays("2.7-trace-header", "2.7-trace-header-own")
def test_a_trace_joins_the_message(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "own"}}
    for more, expected in (({}, "Root=1-2-3"), ({"MessageSystemAttributes": own}, "own")):
        body = {"QueueUrl": url, "MessageBody": "b", **more}
        assert server.raw("SendMessage", body, X_Amzn_Trace_Id="Root=1-2-3").status == 200
        [found] = receive(sqs, url, AttributeNames=["AWSTraceHeader"])
        assert found["Attributes"] == {"AWSTraceHeader": expected}


@pytest.mark.plays("2.8-fifo-order")
def test_a_batch_keeps_its_order_on_a_fifo_queue(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(ContentBasedDeduplication="true")
    expected = [f"m{n}" for n in range(10)]
    entries = [{"Id": body, "MessageBody": body, "MessageGroupId": "g"} for body in expected]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == expected
    numbers = [entry["SequenceNumber"] for entry in sent["Successful"]]
    assert numbers == sorted(numbers)
    assert bodies(receive(sqs, url)) == expected


@pytest.mark.plays("2.8-answer")
def test_each_entry_of_a_batch_has_an_answer(server: Server, queue: MakeQueue) -> None:
    url = queue()
    for call in (server.json, server.query):
        entries = [
            {"Id": "1", "MessageBody": "a", "MessageAttributes": {"k": TEXT}},
            {"Id": "2", "MessageBody": "b", "MessageSystemAttributes": {"AWSTraceHeader": TEXT}},
        ]
        first, second = call("SendMessageBatch", QueueUrl=url, Entries=entries).result["Successful"]
        assert uuid.UUID(first.pop("MessageId")) != uuid.UUID(second.pop("MessageId"))
        assert first == {
            "Id": "1",
            "MD5OfMessageBody": digest.of_body("a"),
            "MD5OfMessageAttributes": digest.of_attributes({"k": TEXT}),
        }
        assert second == {
            "Id": "2",
            "MD5OfMessageBody": digest.of_body("b"),
            "MD5OfMessageSystemAttributes": digest.of_attributes({"AWSTraceHeader": TEXT}),
        }


@pytest.mark.plays("2.9-default-max")
def test_one_message_unless_more_are_asked_for(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a", "b", "c")
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
    assert len(server.query("ReceiveMessage", QueueUrl=url).result["Messages"]) == 1


@pytest.mark.plays("2.9-nothing")
def test_nothing_is_an_answer_too(server: Server, queue: MakeQueue) -> None:
    url = queue()
    assert server.raw("ReceiveMessage", {"QueueUrl": url}).body == b"{}"
    assert server.query("ReceiveMessage", QueueUrl=url).result == {}


@pytest.mark.plays("2.9-system-attributes", "2.9-system-attributes-union", "2.9-no-names")
def test_a_receiver_asks_for_system_attributes(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(VisibilityTimeout="0")
    before = time.time() * 1000
    send(sqs, url, "a")
    for call in (server.json, server.query):

        def attributes(**names: list[str]) -> dict[str, str] | None:
            [message] = call("ReceiveMessage", QueueUrl=url, **names).result["Messages"]
            return message.get("Attributes")

        assert attributes() is None
        assert set(attributes(AttributeNames=["SenderId"]) or {}) == {"SenderId"}
        union = attributes(AttributeNames=["SenderId"], MessageSystemAttributeNames=["SentTimestamp", "Nothing"])
        assert set(union or {}) == {"SenderId", "SentTimestamp"}
        for names in ({"AttributeNames": ["All"]}, {"MessageSystemAttributeNames": ["All"]}):
            found = attributes(**names) or {}
            assert set(found) == {
                "SenderId",
                "SentTimestamp",
                "ApproximateReceiveCount",
                "ApproximateFirstReceiveTimestamp",
            }
            assert abs(int(found["SentTimestamp"]) - before) < 60_000
            assert int(found["SentTimestamp"]) <= int(found["ApproximateFirstReceiveTimestamp"])


@pytest.mark.plays("2.9-system-attributes-on-fifo")
def test_system_attributes_of_a_fifo_message(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    sent = sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="g", MessageDeduplicationId="d")
    [found] = receive(sqs, url, MessageSystemAttributeNames=["All"])
    attributes = found["Attributes"]
    assert attributes["SequenceNumber"] == sent["SequenceNumber"]
    assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("g", "d")


@pytest.mark.plays("2.9-group-on-standard")
def test_a_group_is_shown_on_a_standard_queue_too(sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    sqs.send_message(QueueUrl=url, MessageBody="a", MessageGroupId="g")
    sqs.send_message(QueueUrl=url, MessageBody="b", MessageGroupId="g")
    found = wait_for(sqs, url, 2, AttributeNames=["MessageGroupId"])
    # And keeps nothing back.
    assert [message["Attributes"]["MessageGroupId"] for message in found] == ["g", "g"]


@pytest.mark.plays("2.9-receive-count", "2.9-visibility-0")
def test_each_receive_counts_and_has_a_handle_of_its_own(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")
    handles, firsts = set(), set()
    names = ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"]
    for count in (1, 2, 3):
        [found] = receive(sqs, url, VisibilityTimeout=0, AttributeNames=names)
        assert found["Attributes"]["ApproximateReceiveCount"] == str(count)
        handles.add(found["ReceiptHandle"])
        firsts.add(found["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert len(handles) == 3 and len(firsts) == 1
    assert server.counts(url) == (1, 0, 0)


@pytest.mark.plays("2.9-attribute-filter")
@pytest.mark.parametrize(
    ("names", "seen"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a b"),
        (["All"], "a a.b ab b"),
        ([".*"], "a a.b ab b"),
        (["*"], "a a.b ab b"),
        (["a.*"], "a a.b ab"),
        (["a.b"], "a.b"),
        (["A", "AWS.*", "a b"], ""),
    ],
)
def test_a_receiver_asks_for_attributes(server: Server, queue: MakeQueue, names: list[str], seen: str) -> None:
    url = queue(VisibilityTimeout="0")
    attributes = {name: {"DataType": "String", "StringValue": name} for name in ("a", "ab", "a.b", "b")}
    server.client.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=attributes)
    for call in (server.json, server.query):
        more = {"MessageAttributeNames": names} if names else {}
        [message] = call("ReceiveMessage", QueueUrl=url, **more).result["Messages"]
        found = message.get("MessageAttributes", {})
        assert sorted(found) == seen.split()
        # The digest is of what is shown.
        expected = digest.of_attributes(found) if found else None
        assert message.get("MD5OfMessageAttributes") == expected


class Waiting:
    """A receive that waits, while something is done about it."""

    def __init__(self, sqs: Any, url: str, **more: Any) -> None:
        self._found: list[dict[str, Any]] = []
        self.seconds = 0.0

        def run() -> None:
            since = time.monotonic()
            self._found = receive(sqs, url, WaitTimeSeconds=20, **more)
            self.seconds = time.monotonic() - since

        self._thread = threading.Thread(target=run)
        self._thread.start()
        time.sleep(0.3)

    def found(self) -> list[dict[str, Any]]:
        self._thread.join(timeout=25)
        assert not self._thread.is_alive()
        return self._found


@pytest.mark.plays("2.9-wait-ends-with-arrival", "2.9-wait-does-not-fill")
def test_a_wait_ends_when_a_message_arrives(sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    waiting = Waiting(sqs, url)
    send(sqs, url, "a")
    assert bodies(waiting.found()) == ["a"]
    assert 0.25 < waiting.seconds < 10


@pytest.mark.plays("2.9-no-wait-when-there")
def test_what_is_there_is_not_waited_for(sqs: Any, queue: MakeQueue) -> None:
    url = queue(ReceiveMessageWaitTimeSeconds="20")
    send(sqs, url, "a")
    since = time.monotonic()
    assert bodies(receive(sqs, url)) == ["a"]
    assert time.monotonic() - since < 10


@pytest.mark.plays("2.9-wait-of-queue")
def test_a_queue_says_how_long_to_wait(sqs: Any, queue: MakeQueue) -> None:
    url = queue(ReceiveMessageWaitTimeSeconds="1")
    since = time.monotonic()
    assert receive(sqs, url) == []
    assert time.monotonic() - since > 0.9
    since = time.monotonic()
    assert receive(sqs, url, WaitTimeSeconds=0) == []
    assert time.monotonic() - since < 0.9


@pytest.mark.plays("2.9-wait-ends-with-delay")
def test_a_wait_ends_when_a_delay_is_over(sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    sqs.send_message(QueueUrl=url, MessageBody="a", DelaySeconds=1)
    waiting = Waiting(sqs, url)
    assert bodies(waiting.found()) == ["a"]
    assert waiting.seconds < 10


@pytest.mark.plays("2.9-wait-ends-with-visibility", "2.9-wait-ends-with-release")
@pytest.mark.parametrize("is_released", [False, True])
def test_a_wait_ends_when_a_message_is_visible_again(sqs: Any, queue: MakeQueue, is_released: bool) -> None:
    url = queue()
    send(sqs, url, "a")
    [held] = receive(sqs, url, VisibilityTimeout=30 if is_released else 1)
    waiting = Waiting(sqs, url)
    if is_released:
        visibility(sqs, url, held, 0)
    assert bodies(waiting.found()) == ["a"]
    assert waiting.seconds < 10


@pytest.mark.plays("2.9-wait-ends-with-group")
def test_a_wait_ends_when_a_group_is_free(sqs: Any, fifo: MakeQueue) -> None:
    url = fifo()
    send(sqs, url, "a", "b", group="g")
    [held] = receive(sqs, url, 1)
    waiting = Waiting(sqs, url)
    delete(sqs, url, held)
    assert bodies(waiting.found()) == ["b"]
    assert waiting.seconds < 10


@pytest.mark.plays("2.9-several-wait")
def test_of_several_who_wait_one_gets_the_message(sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    waiting = [Waiting(sqs, url, VisibilityTimeout=60) for _ in range(3)]
    send(sqs, url, "a", "b", "c")
    found = [bodies(one.found()) for one in waiting]
    assert sorted(body for one in found for body in one) == ["a", "b", "c"]


@pytest.mark.plays("2.9-gone-while-waiting")
def test_who_is_gone_gets_nothing(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    body = urllib.parse.urlencode(
        {"Action": "ReceiveMessage", "QueueUrl": url, "WaitTimeSeconds": "20", "VisibilityTimeout": "60"}
    ).encode()
    headers = http.signed(
        "POST", server.endpoint + "/", {"Content-Type": "application/x-www-form-urlencoded"}, body
    )
    address = urllib.parse.urlsplit(server.endpoint)
    lines = [f"{name}: {value}" for name, value in headers.items() if name.lower() != "content-length"]
    head = "\r\n".join(["POST / HTTP/1.1", f"Host: {address.netloc}", f"Content-Length: {len(body)}", *lines, "", ""])
    with socket.create_connection((address.hostname, address.port or 80), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.3)
    time.sleep(0.3)
    send(sqs, url, "a")
    assert bodies(receive(sqs, url, WaitTimeSeconds=2)) == ["a"]


@pytest.mark.plays("4.7-oldest-first")
def test_the_oldest_message_comes_first(sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    expected = [f"m{n}" for n in range(10)]
    send(sqs, url, *expected)
    assert bodies(receive(sqs, url)) == expected
