"""Queues: creation, addresses, lists, attributes, purge, deletion."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from conftest import MakeQueue
from rows.attributes import LISTED_FIFO, LISTED_STANDARD
from support import errors
from support.server import Server, unique
from support.use import bodies, receive, send


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def redrive(server: Server, target: str, count: int | str = 1) -> str:
    return json.dumps({"deadLetterTargetArn": server.arn(target), "maxReceiveCount": count})


@pytest.mark.plays("2.1-again-same", "2.1-again-by-value", "2.1-again-tags")
def test_a_queue_is_created_again_by_what_means_the_same(server: Server, queue: MakeQueue) -> None:
    dead = queue()
    policy = redrive(server, dead, 5)
    url = queue(VisibilityTimeout="60", RedrivePolicy=policy, SqsManagedSseEnabled="true")
    spaced = json.dumps(dict(reversed(json.loads(policy).items())), indent=1)
    for again in (
        {},
        {"Attributes": {"VisibilityTimeout": "60"}},
        {"Attributes": {"VisibilityTimeout": "060"}},
        {"Attributes": {"SqsManagedSseEnabled": "True"}},
        {"Attributes": {"RedrivePolicy": spaced}},
        {"Attributes": {"DelaySeconds": "0"}},
        {"tags": {"a": "b"}},
    ):
        for call in (server.json, server.query):
            assert call("CreateQueue", QueueName=name_of(url), **again).result.get("QueueUrl") == url, again


@pytest.mark.plays("2.1-again-different")
@pytest.mark.parametrize(("name", "given"), [("VisibilityTimeout", "61"), ("DelaySeconds", "1"), ("Policy", "{}")])
def test_a_queue_is_not_created_again_with_another_value(
    server: Server, queue: MakeQueue, name: str, given: str
) -> None:
    url = queue(VisibilityTimeout="60")
    text = f"A queue already exists with the same name and a different value for attribute {name}"
    arguments = {"QueueName": name_of(url), "Attributes": {name: given}}
    server.refuses("CreateQueue", arguments, "QueueAlreadyExists", text)


@pytest.mark.plays("2-names-are-case-sensitive")
def test_names_are_case_sensitive(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    server.refuses("GetQueueUrl", {"QueueName": name_of(url).upper()}, errors.NO_SUCH_QUEUE)


@pytest.mark.plays("2.2-url", "2.2-owner")
def test_a_queue_is_found_by_its_name(server: Server, queue: MakeQueue) -> None:
    url = queue()
    account = server.arn(url).split(":")[4]
    assert url == f"{server.endpoint}/{account}/{name_of(url)}"
    for call in (server.json, server.query):
        assert call("GetQueueUrl", QueueName=name_of(url)).result == {"QueueUrl": url}
        found = call("GetQueueUrl", QueueName=name_of(url), QueueOwnerAWSAccountId=account)
        assert found.result == {"QueueUrl": url}


@pytest.mark.plays("2.3-prefix", "2.3-pages", "2.3-without-max", "2.3-by-name", "2.3-none")
def test_queues_are_listed_in_pages(server: Server, sqs: Any) -> None:
    prefix = unique("-")
    urls = [sqs.create_queue(QueueName=f"{prefix}{n}")["QueueUrl"] for n in (3, 1, 4, 0, 2)]
    expected = sorted(urls)
    for call in (server.json, server.query):
        assert call("ListQueues", QueueNamePrefix=prefix).result == {"QueueUrls": expected}
        assert call("ListQueues", QueueNamePrefix=prefix, MaxResults=5).result == {"QueueUrls": expected}
        found, token, pages = [], {}, 0
        while True:
            page = call("ListQueues", QueueNamePrefix=prefix, MaxResults=2, **token).result
            found += page["QueueUrls"]
            pages += 1
            if "NextToken" not in page:
                break
            token = {"NextToken": page["NextToken"]}
        assert (found, pages) == (expected, 3)
        assert call("ListQueues", QueueNamePrefix=unique()).result == {}
    for url in urls:
        sqs.delete_queue(QueueUrl=url)


@pytest.mark.plays("2.4-gone")
def test_a_deleted_queue_is_gone_with_its_messages(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a")
    assert server.query("DeleteQueue", QueueUrl=url).is_ok
    server.refuses("DeleteQueue", {"QueueUrl": url}, errors.NO_SUCH_QUEUE)
    server.refuses("ReceiveMessage", {"QueueUrl": url}, errors.NO_SUCH_QUEUE)
    server.refuses("GetQueueUrl", {"QueueName": name_of(url)}, errors.NO_SUCH_QUEUE)
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=name_of(url))


@pytest.mark.plays("2.4-dangling")
def test_a_policy_outlives_the_queue_that_it_names(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead = queue()
    policy = redrive(server, dead)
    url = queue(RedrivePolicy=policy)
    sqs.delete_queue(QueueUrl=dead)
    assert json.loads(server.attributes(url)["RedrivePolicy"]) == json.loads(policy)


@pytest.mark.plays("2.5-no-names", "2.5-unset")
def test_attributes_that_are_not_there_are_left_out(server: Server, queue: MakeQueue) -> None:
    url = queue()
    names = ["RedrivePolicy", "KmsMasterKeyId", "Policy", "RedriveAllowPolicy", "KmsDataKeyReusePeriodSeconds"]
    for call in (server.json, server.query):
        assert call("GetQueueAttributes", QueueUrl=url).result == {}
        assert call("GetQueueAttributes", QueueUrl=url, AttributeNames=names).result == {}


@pytest.mark.plays("3-all-on-standard", "3-all-on-fifo", "3-timestamps", "3-arn")
def test_all_attributes_of_a_fresh_queue(server: Server, queue: MakeQueue, fifo: MakeQueue) -> None:
    now = time.time()
    for url, listed in ((queue(), LISTED_STANDARD), (fifo(), LISTED_FIFO)):
        for call in (server.json, server.query):
            found = call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]).result["Attributes"]
            assert set(found) == listed
            assert found["ApproximateNumberOfMessages"] == "0"
            for name in ("CreatedTimestamp", "LastModifiedTimestamp"):
                assert abs(int(found[name]) - now) < 60, name
            start, _, name = found["QueueArn"].rpartition(":")
            assert name == name_of(url) and start.startswith("arn:aws:sqs:us-east-1:")


@pytest.mark.plays("2.6-cleared")
@pytest.mark.parametrize("name", ["Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId"])
def test_an_empty_text_clears_an_attribute(server: Server, queue: MakeQueue, name: str) -> None:
    given = {
        "Policy": '{"Version":"2012-10-17","Statement":[]}',
        "RedrivePolicy": redrive(server, queue()),
        "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}',
        "KmsMasterKeyId": "k",
    }[name]
    url = queue(**{name: given})
    assert name in server.attributes(url)
    assert server.query("SetQueueAttributes", QueueUrl=url, Attributes={name: ""}).is_ok
    assert name not in server.attributes(url)


@pytest.mark.plays("2.6-kms-takes-over", "2.6-kms-cleared")
def test_one_encryption_takes_the_place_of_the_other(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": "k"})
    found = server.attributes(url)
    assert (found["KmsMasterKeyId"], found["SqsManagedSseEnabled"]) == ("k", "false")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": ""})
    found = server.attributes(url)
    assert "KmsMasterKeyId" not in found and found["SqsManagedSseEnabled"] == "false"


@pytest.mark.plays("2.6-kms-period-hidden")
def test_the_usual_period_is_not_shown(server: Server, sqs: Any, queue: MakeQueue) -> None:
    name = "KmsDataKeyReusePeriodSeconds"
    url = queue(KmsMasterKeyId="k", **{name: "60"})
    assert server.attributes(url)[name] == "60"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: "300"})
    assert name not in server.attributes(url)


@pytest.mark.plays("2.6-atomic")
def test_attributes_change_together_or_not_at_all(server: Server, queue: MakeQueue) -> None:
    url = queue()
    before = server.attributes(url)
    for wrong in ({"VisibilityTimeout": "-1"}, {"Nothing": "1"}):
        for changes in ({"DelaySeconds": "5", **wrong}, {**wrong, "DelaySeconds": "5"}):
            assert not server.json("SetQueueAttributes", QueueUrl=url, Attributes=changes).is_ok
    assert server.attributes(url) == before


@pytest.mark.plays("2.6-modified")
def test_a_change_is_dated(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    before = server.attributes(url)
    time.sleep(1.1)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "5"})
    after = server.attributes(url)
    assert int(after["LastModifiedTimestamp"]) > int(before["LastModifiedTimestamp"])
    assert after["CreatedTimestamp"] == before["CreatedTimestamp"]


@pytest.mark.plays("3-booleans-in-any-case")
def test_booleans_come_back_in_lower_case(server: Server, fifo: MakeQueue) -> None:
    url = fifo(ContentBasedDeduplication="TRUE", SqsManagedSseEnabled="False")
    found = server.attributes(url)
    assert (found["ContentBasedDeduplication"], found["SqsManagedSseEnabled"]) == ("true", "false")


@pytest.mark.plays("3-scope-without-limit")
def test_the_scope_is_set_without_the_limit(server: Server, fifo: MakeQueue) -> None:
    found = server.attributes(fifo(DeduplicationScope="messageGroup"))
    assert (found["DeduplicationScope"], found["FifoThroughputLimit"]) == ("messageGroup", "perQueue")


@pytest.mark.plays("3-delay-not-retroactive")
def test_a_new_delay_leaves_messages_of_a_standard_queue_alone(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue(DelaySeconds="900")
    send(sqs, url, "a")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    assert server.counts(url) == (0, 0, 1)
    assert receive(sqs, url) == []


@pytest.mark.plays("3-delay-retroactive-on-fifo")
def test_a_new_delay_counts_for_messages_of_a_fifo_queue(server: Server, sqs: Any, fifo: MakeQueue) -> None:
    url = fifo(DelaySeconds="900")
    send(sqs, url, "a", group="g")
    assert server.counts(url) == (0, 0, 1)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    assert bodies(receive(sqs, url, WaitTimeSeconds=2)) == ["a"]


@pytest.mark.plays("3-redrive-needs-permission")
def test_a_dead_letter_queue_says_whose_messages_it_takes(server: Server, sqs: Any, queue: MakeQueue) -> None:
    dead, url, other = queue(), queue(), queue()

    def permit(policy: dict[str, Any]) -> None:
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(policy)})

    asks = {"QueueUrl": url, "Attributes": {"RedrivePolicy": redrive(server, dead)}}
    permit({"redrivePermission": "denyAll"})
    server.refuses("SetQueueAttributes", asks, "InvalidParameterValue")
    permit({"redrivePermission": "byQueue", "sourceQueueArns": [server.arn(other)]})
    server.refuses("SetQueueAttributes", asks, "InvalidParameterValue")
    permit({"redrivePermission": "byQueue", "sourceQueueArns": [server.arn(url)]})
    sqs.set_queue_attributes(**asks)


@pytest.mark.plays("3-counts")
def test_messages_are_counted_by_where_they_stand(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a", "b", "c")
    sqs.send_message(QueueUrl=url, MessageBody="d", DelaySeconds=900)
    assert server.counts(url) == (3, 0, 1)
    taken = receive(sqs, url, 2)
    assert server.counts(url) == (3 - len(taken), len(taken), 1)


@pytest.mark.plays("2.14-purge")
def test_a_purge_takes_everything(server: Server, sqs: Any, queue: MakeQueue) -> None:
    url = queue()
    send(sqs, url, "a", "b")
    sqs.send_message(QueueUrl=url, MessageBody="c", DelaySeconds=1)
    held = receive(sqs, url, 1, VisibilityTimeout=1)
    assert server.query("PurgeQueue", QueueUrl=url).is_ok
    assert server.counts(url) == (0, 0, 0)
    assert receive(sqs, url, WaitTimeSeconds=2) == []
    sqs.delete_message(QueueUrl=url, ReceiptHandle=held[0]["ReceiptHandle"])


@pytest.mark.plays("2.15-sources", "2.15-none", "2.15-pages")
def test_the_sources_of_a_dead_letter_queue(server: Server, queue: MakeQueue) -> None:
    dead = queue()
    for call in (server.json, server.query):
        assert call("ListDeadLetterSourceQueues", QueueUrl=dead).result.get("queueUrls", []) == []
    assert json.loads(server.raw("ListDeadLetterSourceQueues", {"QueueUrl": dead}).body) == {"queueUrls": []}
    sources = sorted(queue(RedrivePolicy=redrive(server, dead)) for _ in range(3))
    queue()
    for call in (server.json, server.query):
        found = call("ListDeadLetterSourceQueues", QueueUrl=dead).result
        assert sorted(found["queueUrls"]) == sources and "NextToken" not in found
        first = call("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=2).result
        rest = call("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=2, NextToken=first["NextToken"]).result
        assert sorted(first["queueUrls"] + rest["queueUrls"]) == sources and "NextToken" not in rest
