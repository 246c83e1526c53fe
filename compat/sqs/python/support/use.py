"""Small things that many tests do with a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from support.server import unique


def send(sqs: Any, url: str, *bodies: str, group: str | None = None) -> list[str]:
    """Sends each body; on a FIFO queue, each as a message of its own. Gives the ids."""
    more = {} if group is None else {"MessageGroupId": group}
    ids = []
    for body in bodies:
        if group is not None:
            more["MessageDeduplicationId"] = unique()
        ids.append(sqs.send_message(QueueUrl=url, MessageBody=body, **more)["MessageId"])
    return ids


def receive(sqs: Any, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    """What is there now."""
    return sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **more).get("Messages", [])


def wait_for(sqs: Any, url: str, count: int = 1, seconds: float = 5, **more: Any) -> list[dict[str, Any]]:
    """So many messages, as they come."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += receive(sqs, url, min(10, count - len(found)), WaitTimeSeconds=1, **more)
    assert len(found) == count, f"{len(found)} messages came, of {count}"
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def delete(sqs: Any, url: str, *messages: dict[str, Any]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def visibility(sqs: Any, url: str, message: dict[str, Any], seconds: int) -> None:
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
    )


def eventually(check: Callable[[], Any], seconds: float = 10) -> Any:
    """Looks until there is something to see."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found or time.monotonic() > end:
            assert found, "it did not come about in time"
            return found
        time.sleep(0.05)
