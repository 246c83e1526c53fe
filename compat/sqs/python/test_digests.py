"""The digests: botocore does not look at them, so that we do."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import MakeQueue
from support import digest
from support.server import Server


def text(value: str) -> dict[str, Any]:
    return {"DataType": "String", "StringValue": value}


TRACEPARENT = b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
TRACE_HEADER = text("Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1")

VECTORS: list[tuple[dict[str, Any], str]] = [
    ({"k": text("x")}, "a45daa70926828a2f0a1db3418e6feb4"),
    ({"Foo": text("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
    (
        {"General": text("Kenobi"), "Hello": text("There"), "Help.Me": text("Me")},
        "4c360f3fdafd970e05fae2f149d997f5",
    ),
    ({"attr1": {"DataType": "Binary", "BinaryValue": TRACEPARENT}}, "8cbe4db156db8a94db8b801b7addb984"),
]
SYSTEM_VECTOR = ({"AWSTraceHeader": TRACE_HEADER}, "5ae4d5d7636402d80f4eb6d213245a88")


@pytest.mark.plays("1.6-vectors")
@pytest.mark.parametrize(("attributes", "expected"), VECTORS)
def test_attributes_have_the_known_digest(
    server: Server, queue: MakeQueue, attributes: dict[str, Any], expected: str
) -> None:
    assert digest.of_attributes(attributes) == expected
    url = queue(VisibilityTimeout="0")
    for call in (server.json, server.query):
        sent = call("SendMessage", QueueUrl=url, MessageBody="b", MessageAttributes=attributes).result
        assert sent["MD5OfMessageAttributes"] == expected
        assert "MD5OfMessageSystemAttributes" not in sent
        found = call("ReceiveMessage", QueueUrl=url, MessageAttributeNames=["All"]).result["Messages"][0]
        assert found["MD5OfMessageAttributes"] == expected


@pytest.mark.plays("1.6-system-vector", "1.6-system-apart")
def test_system_attributes_have_a_digest_of_their_own(server: Server, queue: MakeQueue) -> None:
    attributes, expected = SYSTEM_VECTOR
    assert digest.of_attributes(attributes) == expected
    url = queue()
    for call in (server.json, server.query):
        send = {"QueueUrl": url, "MessageBody": "b", "MessageSystemAttributes": attributes}
        sent = call("SendMessage", **send).result
        assert sent["MD5OfMessageSystemAttributes"] == expected
        assert "MD5OfMessageAttributes" not in sent
        sent = call("SendMessage", **send, MessageAttributes={"k": text("x")}).result
        assert sent["MD5OfMessageAttributes"] == VECTORS[0][1]
        assert sent["MD5OfMessageSystemAttributes"] == expected


@pytest.mark.plays("1.6-order-and-types")
def test_names_are_sorted_and_labels_count(server: Server, queue: MakeQueue) -> None:
    attributes = {
        "b": text("1"),
        "B": {"DataType": "Number.int", "StringValue": "1"},
        "a.b": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "a": {"DataType": "String.ü", "StringValue": "ü€"},
        "_": text("last of the capitals"),
    }
    url = queue()
    for call in (server.json, server.query):
        sent = call("SendMessage", QueueUrl=url, MessageBody="b", MessageAttributes=attributes).result
        assert sent["MD5OfMessageAttributes"] == digest.of_attributes(attributes)
