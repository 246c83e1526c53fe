"""The table in FACTS.md: each test that it names exists, and its rows are counted."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
JAVA = HERE / "java" / "src" / "test" / "java" / "forebay" / "compat" / "kurrent"
DOOR = HERE.parent.parent / "crates" / "doors" / "src" / "kurrent"
STATES = ["same", "differs", "not there"]


def rows() -> list[list[str]]:
    lines = (HERE / "FACTS.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] not in ("Fact", "---")]


def is_there(test: str) -> bool:
    suite, place = test.split(" ", 1)
    if suite == "js":
        file, title = place.split(" ", 1)
        return f"test({title}" in (HERE / "js" / f"{file}.test.js").read_text()
    of, name = place.split("." if suite == "java" else "::")
    file, definition = {
        "py": (HERE / f"{of}.py", f"def {name}("),
        "rust": (HERE / "rust" / "tests" / "kurrent" / f"{of}.rs", f"async fn {name}("),
        "java": (JAVA / f"{of}.java", f"void {name}("),
        "door": (DOOR / f"{of}.rs", f"fn {name}("),
    }[suite]
    return definition in file.read_text()


def test_each_fact_has_a_test_that_exists() -> None:
    assert [row for row in rows() if len(row) != 3 or row[1] not in STATES] == []
    assert [test for _, _, test in rows() if not is_there(test)] == []
    facts = [fact for fact, _, _ in rows()]
    assert len(set(facts)) == len(facts), "a fact has one row"


def test_the_table_says_how_many_rows_it_has() -> None:
    text = (HERE / "FACTS.md").read_text()
    found = re.search(r"Rows: (\d+)\. Same: (\d+)\. Differs: (\d+)\. Not there: (\d+)\.", text)
    assert found is not None
    states = Counter(state for _, state, _ in rows())
    assert [int(number) for number in found.groups()] == [len(rows())] + [states[state] for state in STATES]
