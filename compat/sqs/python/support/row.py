"""A row: one call, on one kind of queue, and what must come of it.

Some words in a row stand for what is known only when it is played: `$queue` for the address of a queue of the kind
that the row names, `$arn` for its ARN, `$unique` for a new name, `$nowhere` for the address of no queue, `$dead` and
`$deadfifo` for the ARNs of queues that nobody uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from support.server import Message


@dataclass(frozen=True)
class Refused:
    code: str | tuple[str, ...]
    message: Message = None


@dataclass(frozen=True)
class Entries:
    """What comes of each entry of a batch, by id. None is success."""

    outcomes: dict[str, Refused | None]


@dataclass(frozen=True)
class Row:
    id: str
    action: str
    arguments: dict[str, Any]
    # None is success.
    expected: Refused | Entries | None = None
    queue: str = "standard"

    @property
    def section(self) -> str:
        return self.id.partition("-")[0]


# The kinds of queues that rows are played on, and the attributes that make them.
QUEUES: dict[str, dict[str, str]] = {
    "standard": {},
    "small": {"MaximumMessageSize": "1024"},
    "fifo": {"FifoQueue": "true"},
    "content": {"FifoQueue": "true", "ContentBasedDeduplication": "true"},
}


def missing(name: str) -> Refused:
    return Refused("MissingParameter", f"The request must contain the parameter {name}.")


def value(given: object, name: str, reason: str | None = None) -> Refused:
    """A parameter with a value that it cannot have; where the reason is not known, any will do."""
    start = f"Value {given} for parameter {name} is invalid."
    message = re.compile("^" + re.escape(start)) if reason is None else f"{start} Reason: {reason}"
    return Refused("InvalidParameterValue", message)


def parameter(message: str | None = None) -> Refused:
    return Refused("InvalidParameterValue", message)


def containing(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


def fill(data: Any, words: dict[str, str]) -> Any:
    """Puts in what the words stand for."""
    if isinstance(data, str):
        for word, meaning in words.items():
            data = data.replace(word, meaning)
        return data
    if isinstance(data, dict):
        return {fill(key, words): fill(item, words) for key, item in data.items()}
    if isinstance(data, list):
        return [fill(item, words) for item in data]
    return data
