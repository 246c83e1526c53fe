"""The Query protocol by hand: parameters as a flat list, and XML back, read into what JSON would have said."""

from __future__ import annotations

import base64
import urllib.parse
import xml.etree.ElementTree as ElementTree
from typing import Any

VERSION = "2012-11-05"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"

LISTS = {
    "AttributeNames": "AttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "TagKeys": "TagKey",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "StringListValues": "StringListValue",
    "BinaryListValues": "BinaryListValue",
}
MAPS = {
    "Attributes": ("Attribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
    "tags": ("Tag", "Key", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "MessageSystemAttributes": ("MessageSystemAttribute", "Name", "Value"),
}


def parameters(action: str, arguments: dict[str, Any]) -> list[tuple[str, str]]:
    return [("Action", action), ("Version", VERSION), *_flat(action, "", arguments)]


def encode(action: str, arguments: dict[str, Any]) -> bytes:
    return urllib.parse.urlencode(parameters(action, arguments)).encode()


def _flat(action: str, prefix: str, arguments: dict[str, Any]) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in arguments.items():
        if name == "Entries":
            items, key = value, f"{prefix}{action}RequestEntry"
            for index, entry in enumerate(items, 1):
                flat += _flat(action, f"{key}.{index}.", entry)
        elif name in LISTS:
            items, key = value, prefix + LISTS[name]
            flat += [(f"{key}.{index}", _text(item)) for index, item in enumerate(items, 1)]
        elif name in MAPS:
            items, key = value, prefix + MAPS[name][0]
            _, key_name, value_name = MAPS[name]
            for index, (item_key, item) in enumerate(items.items(), 1):
                flat.append((f"{key}.{index}.{key_name}", item_key))
                inner = f"{key}.{index}.{value_name}"
                flat += _flat(action, inner + ".", item) if isinstance(item, dict) else [(inner, _text(item))]
        else:
            flat.append((prefix + name, _text(value)))
            continue
        if not items:
            # How clients say that a list is there and empty.
            flat.append((key, ""))
    return flat


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


# In which member of the result an element is one of many.
REPEATED = {
    "ReceiveMessage": {"Message": "Messages"},
    "ListQueues": {"QueueUrl": "QueueUrls"},
    "ListDeadLetterSourceQueues": {"QueueUrl": "queueUrls"},
    "ListMessageMoveTasks": {"ListMessageMoveTasksResultEntry": "Results"},
    "SendMessageBatch": {"SendMessageBatchResultEntry": "Successful", "BatchResultErrorEntry": "Failed"},
    "DeleteMessageBatch": {"DeleteMessageBatchResultEntry": "Successful", "BatchResultErrorEntry": "Failed"},
    "ChangeMessageVisibilityBatch": {
        "ChangeMessageVisibilityBatchResultEntry": "Successful",
        "BatchResultErrorEntry": "Failed",
    },
}
PAIRS = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
NUMBERS = {
    "ApproximateNumberOfMessagesMoved",
    "ApproximateNumberOfMessagesToMove",
    "MaxNumberOfMessagesPerSecond",
    "StartedTimestamp",
}


def parse_result(action: str, text: str) -> dict[str, Any]:
    root = ElementTree.fromstring(text)
    assert root.tag == f"{{{NAMESPACE}}}{action}Response", root.tag
    assert root.findtext("{*}ResponseMetadata/{*}RequestId"), text
    result = root.find(f"{{*}}{action}Result")
    return {} if result is None else _members(result, REPEATED.get(action, {}))


def parse_error(text: str) -> dict[str, str]:
    """Type, Code, Message and RequestId."""
    root = ElementTree.fromstring(text)
    assert _name(root) == "ErrorResponse", text
    said = {name: root.findtext(f"{{*}}Error/{{*}}{name}") or "" for name in ("Type", "Code", "Message")}
    return {**said, "RequestId": root.findtext("{*}RequestId") or ""}


def _members(element: ElementTree.Element, repeated: dict[str, str]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for child in element:
        name = _name(child)
        if name in repeated:
            member = _members(child, {}) if len(child) else child.text or ""
            members.setdefault(repeated[name], []).append(member)
        elif name in PAIRS:
            into, key_name, value_name = PAIRS[name]
            key, value = child.find(f"{{*}}{key_name}"), child.find(f"{{*}}{value_name}")
            assert key is not None and value is not None, name
            members.setdefault(into, {})[key.text or ""] = _members(value, {}) if len(value) else value.text or ""
        else:
            members[name] = _typed(name, child.text or "")
    return members


def _typed(name: str, text: str) -> Any:
    if name in NUMBERS:
        return int(text)
    if name == "SenderFault":
        return {"true": True, "false": False}[text]
    if name == "BinaryValue":
        return base64.b64decode(text, validate=True)
    return text


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
