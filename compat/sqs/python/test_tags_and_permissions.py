"""Tags, and the policy that permissions make."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import MakeQueue
from support.server import Server, unique

FIRST, SECOND = "123456789012", "210987654321"


def tags(server: Server, url: str) -> dict[str, str]:
    by_json, by_query = (call("ListQueueTags", QueueUrl=url).result for call in (server.json, server.query))
    assert by_json == by_query
    return by_json.get("Tags", {})


@pytest.mark.plays("2.16-none", "2.16-tag", "2.16-again", "2.16-case", "2.16-untag")
def test_tags_come_and_go(server: Server, queue: MakeQueue) -> None:
    url = queue()
    assert json.loads(server.raw("ListQueueTags", {"QueueUrl": url}).body) == {}
    assert tags(server, url) == {}
    assert server.json("TagQueue", QueueUrl=url, Tags={"a": "1", "b": ""}).is_ok
    assert server.query("TagQueue", QueueUrl=url, Tags={"b": "2", "B": "3"}).is_ok
    assert tags(server, url) == {"a": "1", "b": "2", "B": "3"}
    assert server.json("UntagQueue", QueueUrl=url, TagKeys=["a", "nothing"]).is_ok
    assert server.query("UntagQueue", QueueUrl=url, TagKeys=["b"]).is_ok
    assert tags(server, url) == {"B": "3"}


@pytest.mark.plays("2.16-create")
def test_a_queue_is_created_with_tags(server: Server, sqs: Any) -> None:
    for call in (server.json, server.query):
        url = call("CreateQueue", QueueName=unique(), tags={"a": "1", "b": "x y"}).result["QueueUrl"]
        assert tags(server, url) == {"a": "1", "b": "x y"}
        sqs.delete_queue(QueueUrl=url)


@pytest.mark.plays("2.16-fifty-together")
def test_fifty_tags_are_the_most_together(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    sqs.tag_queue(QueueUrl=url, Tags={str(n): "v" for n in range(49)})
    server.refuses("TagQueue", {"QueueUrl": url, "Tags": {"a": "v", "b": "v"}}, "InvalidParameterValue")
    sqs.tag_queue(QueueUrl=url, Tags={"a": "v", "0": "w"})
    assert len(tags(server, url)) == 50


def policy(server: Server, url: str) -> dict[str, Any]:
    return json.loads(server.attributes(url)["Policy"])


@pytest.mark.plays("2.17-policy", "2.17-policy-of-many", "2.17-label-exists", "2.17-remove", "2.17-remove-last")
def test_permissions_make_a_policy(server: Server, queue: MakeQueue) -> None:
    url = queue()
    arn = server.arn(url)
    one = {"QueueUrl": url, "Label": "one", "AWSAccountIds": [FIRST], "Actions": ["SendMessage"]}
    assert server.json("AddPermission", **one).is_ok
    statement = {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{FIRST}:root"},
        "Action": "SQS:SendMessage",
        "Resource": arn,
    }
    assert policy(server, url) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [statement],
    }
    text = "Value one for parameter Label is invalid. Reason: Already exists."
    server.refuses("AddPermission", one, "InvalidParameterValue", text)

    two = {
        "QueueUrl": url,
        "Label": "two",
        "AWSAccountIds": [FIRST, SECOND],
        "Actions": ["SendMessage", "ReceiveMessage"],
    }
    assert server.query("AddPermission", **two).is_ok
    first, second = policy(server, url)["Statement"]
    assert first == statement
    assert second["Principal"] == {"AWS": [f"arn:aws:iam::{FIRST}:root", f"arn:aws:iam::{SECOND}:root"]}
    assert second["Action"] == ["SQS:SendMessage", "SQS:ReceiveMessage"]

    assert server.json("RemovePermission", QueueUrl=url, Label="two").is_ok
    assert policy(server, url)["Statement"] == [statement]
    assert server.query("RemovePermission", QueueUrl=url, Label="one").is_ok
    assert "Policy" not in server.attributes(url)
