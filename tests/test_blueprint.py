"""The page on the blueprint tells the truth: what it names exists, nothing is left out, and nothing lacks a test."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from ricordo.agents.request import TurnRequest
from ricordo.api.models.agents import AgentRequest
from ricordo.api.models.turns import SendRequest
from ricordo.domain.agent import TRIGGER, CompactionSettings
from ricordo.domain.block import DEFAULT_LIMIT
from ricordo.domain.message import ToolCallPart
from ricordo.domain.model import DEFAULT_CONTEXT_WINDOW
from ricordo.domain.scope import Scope
from ricordo.domain.tool import DEFAULT_RETURN_LIMIT
from ricordo.tools.toolbox import failed_result

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "blueprint.md"
# The numbers of the blueprint's contracts; a section that is divided counts by its parts.
SECTIONS = (
    *("0.1.1", "0.1.2", "0.1.3", "0.1.4", "0.1.5", "0.1.6", "0.2", "0.3", "0.3.1", "0.3.2", "0.3.3"),
    *("0.4", "0.4.1", "0.4.2", "0.4.3", "0.4.4", "0.5", "1", "2", "3"),
    *("4.1", "4.2", "4.2.1", "4.2.2", "4.3", "4.4", "4.5", "4.6", "4.7"),
    *("5.1", "5.2", "5.3", "5.4", "5.5", "6.1", "6.2", "6.3", "6.4", "6.5"),
    *("7.1", "7.2", "7.2.1", "7.3", "7.4", "8.1", "8.2", "8.3", "8.4", "9.1", "9.2", "10", "11", "12"),
    *("13.1", "13.2", "14.1", "14.2", "14.3", "15.1", "15.2", "15.3", "16.1", "16.2", "16.3"),
    *("17.1", "17.2", "17.3", "17.4", "17.5"),
    *(f"18.{number}" for number in range(1, 12)),
    "19",
)
# Only these may wait for a later version.
MAY_COME_LATER = ("file", "mcp", "custom tool", "group", "voice", "sleeptime", "source")


@dataclass(frozen=True, slots=True)
class Row:
    """One contract."""

    section: str
    contract: str
    places: tuple[str, ...]
    tests: tuple[str, ...]
    is_later: bool
    difference: str

    @property
    def name(self) -> str:
        return f"{self.section} {self.contract[:50]}"


def rows_of(text: str) -> list[Row]:
    """The rows of all tables of the page; one that is not whole is an error."""
    rows = []
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith(("|---", "| § ")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 5, line
        section, contract, where, proof, difference = cells
        tests = tuple(re.findall(r"`([^`]+)`", proof))
        rows.append(Row(section, contract, tuple(re.findall(r"`([^`]+)`", where)), tests, proof == "later", difference))
    return rows


ROWS = rows_of(PAGE.read_text())


@cache
def names_in(file: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def fault_in(row: Row) -> str | None:
    """What is wrong with a row."""
    if missing := [place for place in row.places if not (ROOT / "ricordo" / place).is_file()]:
        return f"there is no {missing[0]}"
    if row.is_later:
        told = f"{row.contract} {row.difference}".lower()
        return None if any(word in told for word in MAY_COME_LATER) else "this may not come later"
    if not row.places:
        return "it lives nowhere"
    if not row.tests:
        return "no test proves it"
    for test in row.tests:
        file, _, name = test.partition("::")
        path = ROOT / "tests" / file
        if not path.is_file() or name not in names_in(path):
            return f"there is no test {test}"
    return None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_contract_lives_where_it_says_and_has_its_test(row: Row) -> None:
    assert fault_in(row) is None, row.name


def test_every_section_of_the_blueprint_is_on_the_page() -> None:
    assert [section for section in SECTIONS if all(row.section != section for row in ROWS)] == []
    assert {row.section for row in ROWS} <= set(SECTIONS)


def test_a_row_without_a_place_or_a_test_or_with_one_that_is_not_there_is_found() -> None:
    good = "| 1 | It is. | `agents/turn.py` | `test_blueprint.py::test_the_constants_are_those_of_the_page` | |"
    assert [fault_in(row) for row in rows_of(good)] == [None]
    for piece, other in (
        ("agents/turn.py", "agents/gone.py"),
        ("`agents/turn.py`", ""),
        ("constants", "sizes"),
        ("test_blueprint.py", "test_gone.py"),
        ("`test_blueprint.py::test_the_constants_are_those_of_the_page`", ""),
        ("`test_blueprint.py::test_the_constants_are_those_of_the_page`", "later"),
    ):
        (bad,) = rows_of(good.replace(piece, other))
        assert fault_in(bad), bad


def test_the_constants_are_those_of_the_page() -> None:
    assert (DEFAULT_CONTEXT_WINDOW, TRIGGER) == (128_000, 0.9)
    assert (DEFAULT_LIMIT, DEFAULT_RETURN_LIMIT) == (100_000, 50_000)
    least = next(rule.ge for rule in AgentRequest.model_fields["context_window_limit"].metadata if hasattr(rule, "ge"))
    assert least == 1000
    assert TurnRequest(Scope(), "agent").max_steps == SendRequest.model_fields["max_steps"].default == 50
    usual = CompactionSettings()
    assert (usual.mode, usual.sliding_window_percentage, usual.clip_chars) == ("sliding_window", 0.3, 50_000)


def test_a_failure_begins_as_clients_know_it() -> None:
    result = failed_result(ToolCallPart("call-1", "look", "{}"), "It is dark.")
    assert result.status == "error"
    assert any(line.startswith("Error") for line in result.stderr)
