"""Blame and comparison of long texts: in parts, with each version named once, and bounded work."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ricordo.api.models.memory import LONGEST_LINE
from ricordo.memory import blame as blaming
from tests.seams.http import get, ok, put
from tests.seams.server import ServerInThread, serving

MOST = 10


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with a small limit of lines in a response."""
    with serving(tmp_path_factory.mktemp("data"), max_lines=MOST) as server:
        yield server


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the lines of both texts in each comparison that blame makes."""
    counts: list[int] = []
    matched = blaming.matched_lines

    def counted(old: list[str], new: list[str], room: int) -> Any:
        counts.append(len(old) + len(new))
        return matched(old, new, room)

    monkeypatch.setattr(blaming, "matched_lines", counted)
    return counts


def parts_of(http: httpx2.Client, path: str, **query: Any) -> list[Any]:
    parts = [get(http, "ada", path, **query)]
    while parts[-1]["next"] is not None:
        parts.append(get(http, "ada", path, after=parts[-1]["next"], **query))
    return parts


def test_a_blame_in_parts_is_complete_and_names_each_version_once(http: httpx2.Client) -> None:
    lines = [f"line {number}" for number in range(35)]
    put(http, "ada", "long", "\n".join(lines), message="Begin")
    for number in range(0, 35, 5):
        lines[number] = f"edit {number}"
        put(http, "ada", "long", "\n".join(lines) + "\n", message=f"Edit {number}")
    for limit in (None, 1, 3, 7, MOST, 1000):
        parts = parts_of(http, "long/blame", **({"limit": limit} if limit else {}))
        assert max(len(part["lines"]) for part in parts) == min(limit or MOST, MOST)
        assert {part["count"] for part in parts} == {35}
        assert [line["text"] for part in parts for line in part["lines"]] == lines
        assert [line["number"] for part in parts for line in part["lines"]] == list(range(1, 36))
        for part in parts:
            named = [version["sha"] for version in part["versions"]]
            assert len(named) == len(set(named))
            assert set(named) == {line["version"] for line in part["lines"]}
        messages = {
            version["sha"]: version["message"] for part in parts for version in part["versions"]
        }
        told = [messages[line["version"]] for part in parts for line in part["lines"]]
        assert told == ["Begin" if number % 5 else f"Edit {number}" for number in range(35)]
    past = get(http, "ada", "long/blame", after=100)
    assert (past["lines"], past["versions"], past["next"]) == ([], [], None)


def test_a_long_line_is_cut_with_a_mark(http: httpx2.Client) -> None:
    made = put(http, "ada", "wide", "é" * 50_000 + "\nShort.")
    wide, short = get(http, "ada", "wide/blame")["lines"]
    assert (len(wide["text"]), wide["is_cut"], short["is_cut"]) == (LONGEST_LINE, True, False)
    assert get(http, "ada", f"wide/versions/{wide['version']}")["body"] == made["body"]


def test_a_comparison_in_parts_is_complete(http: httpx2.Client) -> None:
    old, new = (
        "".join(f"{'kept' if number % 3 else name} word {number}.\n" for number in range(60))
        for name in ("old", "new")
    )
    put(http, "ada", "both", old)
    put(http, "ada", "both", new)
    parts = parts_of(http, "both/compare")
    assert len(parts) > 4
    assert all(part["unified"].count("\n") <= MOST and len(part["words"]) <= MOST for part in parts)
    pieces = [piece for part in parts for piece in part["words"]]
    assert "".join(piece["text"] for piece in pieces if piece["kind"] != "added") == old
    assert "".join(piece["text"] for piece in pieces if piece["kind"] != "removed") == new
    lines = "".join(part["unified"] for part in parts).splitlines()
    assert (
        sum(line.startswith("-old") for line in lines)
        == sum(line.startswith("+new") for line in lines)
        == 20
    )
    assert ok(http.get("/users/ada/blocks/both/compare", params={"limit": 3}))["next"] == 3


def test_the_work_of_a_blame_is_bounded_for_any_history(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, compared: list[int]
) -> None:
    """Blame exceeds its limit of work by at most one comparison, whatever the texts."""
    monkeypatch.setattr(blaming, "_WORK_LIMIT", 20_000)
    for number in range(12):
        put(http, "ada", "churn", f"{number} a\n" * (2000 + number))
    blamed = get(http, "ada", "churn/blame")
    assert all(line["or_earlier"] is False for line in blamed["lines"])
    for number in range(12):
        put(http, "ada", "churn", f"{number} b\n" + "the same\n" * 2000 + f"{number} a\n" * 10)
    compared.clear()
    assert get(http, "ada", "churn/blame")["count"] == 2011
    assert sum(compared) < 20_000 + 5_000


def test_blame_of_small_edits_costs_only_the_lines_they_change(
    http: httpx2.Client, compared: list[int]
) -> None:
    lines = [f"line {number}" for number in range(5000)]
    put(http, "ada", "large", "\n".join(lines))
    for number in range(0, 5000, 500):
        lines[number] += ", again"
        put(http, "ada", "large", "\n".join(lines))
    first = get(http, "ada", "large/blame", limit=1)
    assert (first["count"], first["lines"][0]["text"]) == (5000, "line 0, again")
    assert sum(compared) <= 2 * 11
