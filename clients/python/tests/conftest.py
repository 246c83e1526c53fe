"""The plugin that users get, and names that no other test has."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

pytest_plugins = ["forebay.testing"]

_numbers = itertools.count(1)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}-{next(_numbers)}"


@pytest.fixture
def fresh() -> Callable[[str], str]:
    return lambda name: f"{name}-{next(_numbers)}"
