"""Fixtures, and the count of the rows that were played."""

from __future__ import annotations

import configparser
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.row import QUEUES
from support.server import Server, unique

ENDPOINT = "FOREBAY_TEST_SQS"
# A server where a queue's name rests for 60 seconds after deletion, and a queue can be purged once in 60 seconds.
STRICT = "FOREBAY_TEST_SQS_STRICT"
# A server that knows the access keys of this file, and no others.
KEYED = "FOREBAY_TEST_SQS_KEYED"
KEYS = Path(__file__).parent.parent / "keys.ini"


@pytest.fixture(scope="session")
def server() -> Server:
    endpoint = os.environ.get(ENDPOINT)
    if not endpoint:
        pytest.exit(f"{ENDPOINT} must name the server, as in http://127.0.0.1:9324", returncode=2)
    return Server(endpoint)


@pytest.fixture(scope="session")
def strict() -> Server:
    return Server(needed(STRICT))


@pytest.fixture(scope="session")
def keyed() -> Server:
    return as_one_of_the_keys("owner")


@pytest.fixture(scope="session")
def stranger() -> Server:
    """The same server, for another account."""
    return as_one_of_the_keys("stranger")


def as_one_of_the_keys(name: str) -> Server:
    endpoint = needed(KEYED)
    keys = configparser.ConfigParser()
    keys.read(KEYS)
    return Server(endpoint, keys[name]["aws_access_key_id"], keys[name]["aws_secret_access_key"])


def needed(variable: str) -> str:
    given = os.environ.get(variable)
    if not given:
        pytest.skip(f"needs {variable}")
    return given


@pytest.fixture(scope="session")
def sqs(server: Server) -> Any:
    """The client that an application has."""
    return server.client


MakeQueue = Callable[..., str]


@pytest.fixture
def queue(sqs: Any) -> Iterator[MakeQueue]:
    """Makes queues, which go with the test. FIFO ones have a name that says so."""
    urls: list[str] = []

    def make(**attributes: str) -> str:
        name = unique(".fifo" if "FifoQueue" in attributes else "")
        more = {"Attributes": attributes} if attributes else {}
        urls.append(sqs.create_queue(QueueName=name, **more)["QueueUrl"])
        return urls[-1]

    yield make
    for url in urls:
        discard(sqs, url)


@pytest.fixture
def fifo(queue: MakeQueue) -> MakeQueue:
    def make(**attributes: str) -> str:
        return queue(FifoQueue="true", **attributes)

    return make


def discard(sqs: Any, url: str) -> None:
    try:
        sqs.delete_queue(QueueUrl=url)
    except sqs.exceptions.QueueDoesNotExist:
        pass


@pytest.fixture(scope="session")
def standing(sqs: Any) -> Iterator[dict[str, str]]:
    """A queue of each kind, for requests that leave it as it was."""
    urls: dict[str, str] = {}
    for kind, attributes in QUEUES.items():
        name = unique(".fifo" if "FifoQueue" in attributes else "")
        urls[kind] = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    yield urls
    for url in urls.values():
        discard(sqs, url)


@pytest.fixture(scope="session")
def words(server: Server, sqs: Any) -> Iterator[dict[str, str]]:
    """What some words in rows stand for. Longer ones come first, as they begin like shorter ones."""
    dead = sqs.create_queue(QueueName=unique())["QueueUrl"]
    dead_fifo = sqs.create_queue(QueueName=unique(".fifo"), Attributes=QUEUES["fifo"])["QueueUrl"]
    account = server.arn(dead).split(":")[4]
    yield {
        "$deadfifo": server.arn(dead_fifo),
        "$dead": server.arn(dead),
        "$nowhere": f"{server.endpoint}/{account}/{unique()}",
    }
    for url in (dead, dead_fifo):
        discard(sqs, url)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    if not any(name == "rows" for name, _ in item.user_properties):
        rows = [one for mark in item.iter_markers("plays") for one in mark.args]
        callspec = getattr(item, "callspec", None)
        rows += [] if callspec is None else callspec.params.get("row_ids", [])
        item.user_properties.append(("rows", rows))
    return (yield)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    def rows_of(outcome: str) -> set[str]:
        reports = terminalreporter.stats.get(outcome, [])
        return {
            row
            for report in reports
            for name, rows in getattr(report, "user_properties", [])
            if name == "rows"
            for row in rows
        }

    played = rows_of("passed") | rows_of("failed")
    sections = Counter(chapter(row) for row in played)
    listed = ", ".join(f"{section}: {sections[section]}" for section in sorted(sections))
    if left := sorted(rows_of("skipped") - played):
        terminalreporter.write_line(f"rows not played: {len(left)} ({', '.join(left)})")
    if played:
        terminalreporter.write_line(f"rows played: {len(played)} ({listed})")


def chapter(row: str) -> str:
    """1.4 is a table of its own; all else is counted by chapter."""
    section = row.partition("-")[0]
    return section if section == "1.4" else section.partition(".")[0]
