"""Plays the tables of sections 2 and 3, each row through both protocols."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeQueue, discard
from rows import attributes, messages, queues
from rows.attributes import ATTRIBUTES, Attribute
from rows.stories import STORIES
from support.row import QUEUES, Entries, Refused, Row, fill
from support.server import Outcome, Server, check_message, unique

ROWS = [*queues.ROWS, *messages.ROWS]
# These change the queue, so that each has one of its own.
OWN_QUEUE_ROWS = attributes.ROWS


def by_id(rows: list[Row]) -> list[Any]:
    return [pytest.param(row, [row.id], id=row.id) for row in rows]


@pytest.mark.parametrize(("row", "row_ids"), by_id(ROWS))
def test_row(
    row: Row, row_ids: list[str], server: Server, standing: dict[str, str], words: dict[str, str]
) -> None:
    play(server, row, standing[row.queue], words)


@pytest.mark.parametrize(("row", "row_ids"), by_id(OWN_QUEUE_ROWS))
def test_row_on_a_queue_of_its_own(
    row: Row, row_ids: list[str], server: Server, queue: MakeQueue, words: dict[str, str]
) -> None:
    url = queue(**QUEUES[row.queue])
    play(server, row, url, words)
    if row.expected is not None:
        return
    # What was set comes back.
    for name, given in fill(row.arguments["Attributes"], words | {"$arn": server.arn(url)}).items():
        shown = server.attributes(url).get(name)
        if not given:
            assert shown is None
            continue
        expected, found = json.loads(given), json.loads(shown or "null")
        count = expected.pop("maxReceiveCount", None)
        if isinstance(count, int):
            assert found["maxReceiveCount"] == count
        found.pop("maxReceiveCount", None)
        assert found == expected


def play(server: Server, row: Row, url: str, words: dict[str, str]) -> None:
    known = {**words, "$queue": url}
    if "$arn" in json.dumps(row.arguments, default=str):
        known["$arn"] = server.arn(url)
    if isinstance(row.expected, Refused):
        arguments = fill(row.arguments, {**known, "$unique": unique()})
        server.refuses(row.action, arguments, row.expected.code, row.expected.message)
        return
    for call in (server.json, server.query):
        arguments = fill(row.arguments, {**known, "$unique": unique()})
        outcome = call(row.action, **arguments)
        assert outcome.is_ok, f"{call.__name__}: {outcome.said}"
        if isinstance(row.expected, Entries):
            check_entries(outcome, row.expected, call.__name__)
        if row.action == "CreateQueue":
            discard(server.client, outcome.result["QueueUrl"])


def check_entries(outcome: Outcome, expected: Entries, protocol: str) -> None:
    successful = [entry["Id"] for entry in outcome.result.get("Successful", [])]
    assert successful == [one for one, refused in expected.outcomes.items() if refused is None]
    failed = {entry["Id"]: entry for entry in outcome.result.get("Failed", [])}
    assert set(failed) == {one for one, refused in expected.outcomes.items() if refused is not None}
    for one, refused in expected.outcomes.items():
        if refused is not None:
            assert failed[one]["Code"] == refused.code, protocol
            assert failed[one]["SenderFault"] is True
            check_message(failed[one].get("Message", ""), refused.message, protocol)
    # An empty list is left out.
    assert "Failed" not in outcome.result or failed
    assert "Successful" not in outcome.result or successful


def defaults() -> list[Any]:
    found = []
    for one in ATTRIBUTES:
        if not one.along:
            row = f"3-{one.name}-default" + ("-on-fifo" if one.fifo else "")
            found.append(pytest.param(one, [row], id=row))
    return found


@pytest.mark.parametrize(("attribute", "row_ids"), defaults())
def test_default(attribute: Attribute, row_ids: list[str], server: Server, queue: MakeQueue) -> None:
    url = queue(**({"FifoQueue": "true"} if attribute.fifo else {}))
    assert server.attributes(url, attribute.name).get(attribute.name) == attribute.default


def settings(kind: str) -> list[Any]:
    found = []
    for one in ATTRIBUTES:
        for given in getattr(one, kind):
            row = f"3-{one.name}-{kind}-{given}"
            found.append(pytest.param(one, given, [row], id=row))
    return found


@pytest.mark.parametrize(("attribute", "given", "row_ids"), settings("right"))
def test_a_value_that_can_be(
    attribute: Attribute, given: str, row_ids: list[str], server: Server, queue: MakeQueue
) -> None:
    for call in (server.json, server.query):
        url = queue(**({"FifoQueue": "true"} if attribute.fifo else {}))
        outcome = call("SetQueueAttributes", QueueUrl=url, Attributes={**attribute.along, attribute.name: given})
        assert outcome.is_ok, outcome.said
        shown = call("GetQueueAttributes", QueueUrl=url, AttributeNames=[attribute.name])
        found = shown.result["Attributes"][attribute.name]
        if given.startswith("{"):
            assert json.loads(found) == json.loads(given)
        else:
            assert found == (given.lower() if given.lower() in ("true", "false") else given)


@pytest.mark.parametrize(("attribute", "given", "row_ids"), settings("wrong"))
def test_a_value_that_cannot_be(
    attribute: Attribute, given: str, row_ids: list[str], server: Server, queue: MakeQueue
) -> None:
    url = queue(**({"FifoQueue": "true"} if attribute.fifo else {}))
    before = server.attributes(url)
    arguments = {"QueueUrl": url, "Attributes": {**attribute.along, attribute.name: given}}
    text = attributes.containing(f"Invalid value for the parameter {attribute.name}.")
    server.refuses("SetQueueAttributes", arguments, "InvalidAttributeValue", text)
    assert server.attributes(url) == before


def test_every_row_has_a_name_of_its_own() -> None:
    ids = [row.id for row in [*ROWS, *OWN_QUEUE_ROWS]] + list(STORIES)
    assert [one for one, count in Counter(ids).items() if count > 1] == []


def test_every_story_is_told_by_a_test() -> None:
    told = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.plays":
                told |= {ast.literal_eval(argument) for argument in node.args}
    assert told == set(STORIES)
