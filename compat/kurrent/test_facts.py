"""The table in FACTS.md: each test that it names exists, and its rows are numbered and counted."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
JAVA = HERE / "java" / "src" / "test" / "java" / "forebay" / "compat" / "kurrent"
CRATES = HERE.parent.parent / "crates"
DOOR = CRATES / "doors" / "src" / "kurrent"
CLI = CRATES / "cli" / "tests" / "e2e"
UNTESTED = "no test"
STATES = ["same", "differs", "not there", UNTESTED]


def rows() -> list[list[str]]:
    lines = (HERE / "FACTS.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] not in ("No.", "---")]


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
        "cli": (CLI / f"{of}.rs", f"fn {name}("),
    }[suite]
    return definition in file.read_text()


def test_each_fact_has_a_test_that_exists() -> None:
    assert [row for row in rows() if len(row) != 4 or row[2] not in STATES or not row[3]] == []
    assert [test for _, _, state, test in rows() if state != UNTESTED and not is_there(test)] == []
    facts = [fact for _, fact, _, _ in rows()]
    assert [fact for fact, count in Counter(facts).items() if count > 1] == [], "a fact has one row"


def test_rows_are_numbered_within_their_sections() -> None:
    expected, section = [], ""
    for line in (HERE / "FACTS.md").read_text().splitlines():
        if heading := re.match(r"## ([0-9.]+)\. ", line):
            section, number = heading[1], 0
        elif line.startswith("| ") and not line.startswith(("| No.", "| ---")):
            number += 1
            expected.append(f"{section}.{number}")
    assert [number for number, _, _, _ in rows()] == expected


def test_the_table_says_how_many_rows_it_has() -> None:
    text = (HERE / "FACTS.md").read_text()
    pattern = r"Rows: (\d+)\. Same: (\d+)\. Differs: (\d+)\. Not there: (\d+)\. No test: (\d+)\."
    found = re.search(pattern, text)
    assert found is not None
    states = Counter(state for _, _, state, _ in rows())
    assert [int(number) for number in found.groups()] == [len(rows())] + [states[state] for state in STATES]
