"""Dead-letter queues, and the tasks that move messages out of them."""

from __future__ import annotations

import base64
import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from conftest import MakeQueue
from support.errors import NO_SUCH_QUEUE
from support.server import Server, unique
from support.use import bodies, eventually, receive, send, wait_for

TEXT = {"DataType": "String", "StringValue": "v"}


def redrive(server: Server, dead: str, count: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": server.arn(dead), "maxReceiveCount": count})


def fail(sqs: Any, url: str, dead: str, count: int) -> None:
    """Receives so many messages and lets go of them, until they lie in the dead-letter queue."""

    def all_dead() -> bool:
        receive(sqs, url, VisibilityTimeout=0)
        name = "ApproximateNumberOfMessages"
        found = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=[name])
        return int(found["Attributes"][name]) >= count

    eventually(all_dead)


@pytest.mark.plays("4.3-second-receive-moves", "4.2-kept-by-the-move", "4.2-count-continues")
def test_a_message_that_fails_goes_to_the_dead_letter_queue(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead = queue()
    url = queue(RedrivePolicy=redrive(server, dead))
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="a",
        MessageAttributes={"k": TEXT},
        MessageSystemAttributes={"AWSTraceHeader": TEXT},
    )
    [first] = receive(sqs, url, VisibilityTimeout=0, AttributeNames=["All"])
    assert "DeadLetterQueueSourceArn" not in first["Attributes"]
    assert receive(sqs, url) == []
    # It is there by the end of the receive that did not find it, so that there is nothing to wait for.
    [found] = receive(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "a")
    assert found["MessageAttributes"] == {"k": TEXT}
    attributes = found["Attributes"]
    assert attributes["DeadLetterQueueSourceArn"] == server.arn(url)
    assert attributes["ApproximateReceiveCount"] == "2"
    assert attributes["AWSTraceHeader"] == "v"
    assert attributes["SentTimestamp"] == first["Attributes"]["SentTimestamp"]
    assert server.counts(url) == (0, 0, 0)


@pytest.mark.plays("4.3-count")
def test_a_message_has_as_many_tries_as_the_policy_says(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead = queue()
    url = queue(RedrivePolicy=redrive(server, dead, 3))
    send(sqs, url, "a")
    for _ in range(3):
        assert len(receive(sqs, url, VisibilityTimeout=0)) == 1
    assert receive(sqs, url) == []
    assert bodies(receive(sqs, dead)) == ["a"]


@pytest.mark.plays("4.3-search-goes-on")
def test_a_receive_goes_on_to_what_is_not_dead(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead = queue()
    url = queue(RedrivePolicy=redrive(server, dead))
    send(sqs, url, "a")
    receive(sqs, url, VisibilityTimeout=0)
    send(sqs, url, "b")
    assert bodies(receive(sqs, url)) == ["b"]
    assert bodies(receive(sqs, dead)) == ["a"]


@pytest.mark.plays("4.3-own-target")
def test_the_dead_letters_of_a_queue_that_names_itself_stay(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive(server, url)})
    sources = sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"]
    assert [source.rsplit("/", 1)[1] for source in sources] == [url.rsplit("/", 1)[1]]
    send(sqs, url, "a")
    for count in ("1", "2", "3"):
        [found] = receive(sqs, url, VisibilityTimeout=0, AttributeNames=["All"])
        assert (found["Body"], found["Attributes"]["ApproximateReceiveCount"]) == ("a", count)


@pytest.mark.plays("4.3-target-deleted")
def test_a_message_stays_when_the_dead_letter_queue_is_gone(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead = queue()
    url = queue(RedrivePolicy=redrive(server, dead))
    sqs.delete_queue(QueueUrl=dead)
    send(sqs, url, "a")
    receive(sqs, url, VisibilityTimeout=0)
    receive(sqs, url, VisibilityTimeout=0)
    visible, held, _ = server.counts(url)
    assert visible + held == 1


@pytest.mark.plays("4.3-timeout-counts")
def test_a_message_whose_time_is_over_has_failed(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead = queue()
    url = queue(RedrivePolicy=redrive(server, dead), VisibilityTimeout="1")
    send(sqs, url, "a")
    assert len(receive(sqs, url)) == 1
    assert receive(sqs, url, WaitTimeSeconds=2) == []
    assert bodies(receive(sqs, dead)) == ["a"]


@pytest.mark.plays("4.3-fifo-unblocks", "4.3-fifo-keeps-ids", "4.3-fifo-order", "4.3-fifo-duplicate")
def test_a_group_goes_on_without_its_dead(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    dead = fifo()
    url = fifo(RedrivePolicy=redrive(server, dead))
    for body in ("a", "b", "c"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body)
    # The dead-letter queue knows this id already, and takes the message that comes with it all the same.
    sqs.send_message(QueueUrl=dead, MessageBody="early", MessageGroupId="h", MessageDeduplicationId="a")
    assert bodies(receive(sqs, url, 2, VisibilityTimeout=0)) == ["a", "b"]
    assert bodies(receive(sqs, url)) == ["c"]
    found = wait_for(sqs, dead, 3, AttributeNames=["All"])
    assert bodies(found) == ["early", "a", "b"]
    for message in found[1:]:
        attributes = message["Attributes"]
        assert (attributes["MessageGroupId"], attributes["MessageDeduplicationId"]) == ("g", message["Body"])
        assert attributes["DeadLetterQueueSourceArn"] == server.arn(url)


@dataclass(frozen=True)
class Pair:
    """A queue and its dead-letter queue."""

    url: str
    dead: str
    dead_arn: str


@pytest.fixture
def pair(server: Server, queue: MakeQueue) -> Pair:
    dead = queue()
    return Pair(queue(RedrivePolicy=redrive(server, dead)), dead, server.arn(dead))


def tasks(server: Server, pair: Pair, count: int = 10) -> list[dict[str, Any]]:
    arguments = {"SourceArn": pair.dead_arn, "MaxResults": count}
    by_json, by_query = (call("ListMessageMoveTasks", **arguments) for call in (server.json, server.query))
    assert by_json.is_ok and by_query.is_ok, (by_json.said, by_query.said)
    statuses = [[task["Status"] for task in outcome.result.get("Results", [])] for outcome in (by_json, by_query)]
    if statuses[0] == statuses[1] and "RUNNING" not in statuses[0]:
        assert by_json.result.get("Results", []) == by_query.result.get("Results", [])
    return by_json.result.get("Results", [])


def ended(server: Server, pair: Pair) -> dict[str, Any]:
    """The newest task, once it runs no more."""

    def newest() -> dict[str, Any] | None:
        [task, *_] = tasks(server, pair)
        return task if task["Status"] in ("COMPLETED", "CANCELLED", "FAILED") else None

    return eventually(newest)


@pytest.mark.plays(
    "2.18-back-to-source",
    "2.18-handle",
    "2.18-completed",
    "2.18-id-is-kept",
    "2.18-count-starts-again",
    "2.18-list-empty",
)
def test_messages_go_back_to_where_they_came_from(server: Server, sqs: Any, pair: Pair, queue: MakeQueue) -> None:
    other = queue(RedrivePolicy=redrive(server, pair.dead))
    ids = {**dict(zip(send(sqs, pair.url, "a"), "a")), **dict(zip(send(sqs, other, "b"), "b"))}
    fail(sqs, pair.url, pair.dead, 1)
    fail(sqs, other, pair.dead, 2)
    assert tasks(server, pair) == []
    before = time.time() * 1000
    handle = sqs.start_message_move_task(SourceArn=pair.dead_arn)["TaskHandle"]
    decoded = json.loads(base64.b64decode(handle, validate=True))
    assert set(decoded) == {"taskId", "sourceArn"} and decoded["sourceArn"] == pair.dead_arn
    uuid.UUID(decoded["taskId"])
    task = ended(server, pair)
    assert abs(task.pop("StartedTimestamp") - before) < 60_000
    assert task == {
        "Status": "COMPLETED",
        "SourceArn": pair.dead_arn,
        "ApproximateNumberOfMessagesMoved": 2,
        "ApproximateNumberOfMessagesToMove": 2,
    }
    for url, body in ((pair.url, "a"), (other, "b")):
        [found] = wait_for(sqs, url, AttributeNames=["All"])
        assert found["Body"] == body == ids[found["MessageId"]]
        assert found["Attributes"]["ApproximateReceiveCount"] == "1"
    assert server.counts(pair.dead) == (0, 0, 0)


@pytest.mark.plays("2.18-destination", "2.18-list-newest-first", "2.18-list-default-1")
def test_messages_go_where_they_are_told(server: Server, sqs: Any, pair: Pair, queue: MakeQueue) -> None:
    other = queue()
    for body in ("a", "b"):
        send(sqs, pair.url, body)
        fail(sqs, pair.url, pair.dead, 1)
        arguments = {"SourceArn": pair.dead_arn, "DestinationArn": server.arn(other)}
        assert server.query("StartMessageMoveTask", **arguments, MaxNumberOfMessagesPerSecond=500).is_ok
        task = ended(server, pair)
        assert (task["Status"], task["DestinationArn"]) == ("COMPLETED", server.arn(other))
        assert task["MaxNumberOfMessagesPerSecond"] == 500
        assert bodies(wait_for(sqs, other)) == [body]
        time.sleep(0.01)
    newest, oldest = tasks(server, pair)
    assert newest["StartedTimestamp"] > oldest["StartedTimestamp"]
    assert sqs.list_message_move_tasks(SourceArn=pair.dead_arn)["Results"] == [newest]


@pytest.mark.plays("2.18-running", "2.18-only-one", "2.18-rate", "2.18-cancel", "2.18-cancel-ended")
def test_a_slow_task_can_be_watched_and_cancelled(server: Server, sqs: Any, pair: Pair) -> None:
    send(sqs, pair.url, *[f"m{n}" for n in range(10)])
    fail(sqs, pair.url, pair.dead, 10)
    start = {"SourceArn": pair.dead_arn, "MaxNumberOfMessagesPerSecond": 1}
    since = time.monotonic()
    handle = sqs.start_message_move_task(**start)["TaskHandle"]
    text = "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    server.refuses("StartMessageMoveTask", start, "InvalidParameterValue", text)

    def moving() -> dict[str, Any] | None:
        [task] = tasks(server, pair)
        assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle)
        assert task["MaxNumberOfMessagesPerSecond"] == 1
        return task if task["ApproximateNumberOfMessagesMoved"] > 0 else None

    eventually(moving)
    cancelled = server.query("CancelMessageMoveTask", TaskHandle=handle)
    assert cancelled.is_ok, cancelled.said
    seconds = time.monotonic() - since
    moved = cancelled.result["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved <= seconds + 2
    task = ended(server, pair)
    assert task["Status"] == "CANCELLED" and "TaskHandle" not in task
    assert server.counts(pair.dead)[0] == 10 - task["ApproximateNumberOfMessagesMoved"]
    codes = ("InvalidParameterValue", "ResourceNotFoundException", "AWS.SimpleQueueService.UnsupportedOperation")
    server.refuses("CancelMessageMoveTask", {"TaskHandle": handle}, codes)


@pytest.mark.plays("2.18-destination-missing", "2.18-destination-type")
def test_a_task_needs_somewhere_to_go(server: Server, pair: Pair, fifo: MakeQueue) -> None:
    nowhere = f"{pair.dead_arn}-nothing"
    text = "The resource that you specified for the DestinationArn parameter doesn't exist."
    arguments = {"SourceArn": pair.dead_arn, "DestinationArn": nowhere}
    server.refuses("StartMessageMoveTask", arguments, "ResourceNotFoundException", text)
    arguments = {"SourceArn": pair.dead_arn, "DestinationArn": server.arn(fifo())}
    server.refuses("StartMessageMoveTask", arguments, "InvalidParameterValue")


@pytest.mark.plays("2.18-destination-deleted")
def test_a_task_fails_when_its_destination_is_deleted(
    server: Server, sqs: Any, pair: Pair, queue: MakeQueue
) -> None:
    other = queue()
    send(sqs, pair.url, *[f"m{n}" for n in range(10)])
    fail(sqs, pair.url, pair.dead, 10)
    sqs.start_message_move_task(
        SourceArn=pair.dead_arn, DestinationArn=server.arn(other), MaxNumberOfMessagesPerSecond=1
    )
    sqs.delete_queue(QueueUrl=other)
    task = ended(server, pair)
    assert (task["Status"], task["FailureReason"]) == ("FAILED", NO_SUCH_QUEUE)
    assert "TaskHandle" not in task


def task_handle(source: str) -> str:
    return base64.b64encode(json.dumps({"taskId": str(uuid.uuid4()), "sourceArn": source}).encode()).decode()


@pytest.mark.plays("2.18-cancel-unknown-task", "2.18-cancel-unknown-source")
def test_a_task_that_nobody_started_is_not_cancelled(server: Server, pair: Pair) -> None:
    server.refuses(
        "CancelMessageMoveTask",
        {"TaskHandle": task_handle(pair.dead_arn)},
        "ResourceNotFoundException",
        "Task does not exist.",
    )
    server.refuses(
        "CancelMessageMoveTask",
        {"TaskHandle": task_handle(f"{pair.dead_arn}-{unique()}")},
        "ResourceNotFoundException",
        "The resource that you specified for the SourceArn parameter doesn't exist.",
    )
