"""What is kept of an error, when a job is tried again, and which handlers a server may have."""

import random

import pytest

from ricordo.background.handlers import Handlers, describe, is_final, retry_after
from ricordo.domain.clock import SECOND
from ricordo.domain.job import Job, JobHandler, Report
from ricordo.errors import Invalid, NotFound, Unavailable


async def nothing(_runtime: object, _job: Job, _report: Report) -> None:
    """Do nothing."""


def test_retries_come_later_and_later_up_to_ten_minutes_and_never_all_at_once() -> None:
    chance = random.Random(7)  # noqa: S311
    for attempt, least in [(1, 2), (2, 8), (3, 32), (4, 128), (5, 512), (6, 600), (500, 600)]:
        waits = {retry_after(attempt, chance) for _ in range(20)}
        assert len(waits) > 10
        assert least * SECOND <= min(waits)
        assert max(waits) <= least * 1.2 * SECOND


def test_what_is_wrong_for_good_is_not_tried_again() -> None:
    assert is_final(Invalid("x"))
    assert is_final(NotFound("x"))
    assert not is_final(Unavailable("x"))
    assert not is_final(ValueError("x"))


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("401 for sk-proj-0123456789abc", "401 for [secret removed: api key]"),
        (
            "postgresql://ricordo:secret@db/ricordo refused",
            "postgresql://[secret removed: password]@db/ricordo refused",
        ),
        ("GET /x?api_key=abc&page=2", "GET /x?api_key=[secret removed: credential]&page=2"),
        ("Authorization: Bearer abc.defg", "Authorization: Bearer [secret removed: credential]"),
        ("two\nlines", "two lines"),
        ("x" * 1000, "x" * 400),
    ],
)
def test_an_error_is_kept_short_and_without_its_secrets(message: str, kept: str) -> None:
    assert describe(ValueError(message)) == {"type": "ValueError", "message": kept}


def test_two_handlers_of_one_kind_are_refused() -> None:
    with pytest.raises(Invalid, match="two handlers"):
        Handlers([JobHandler("a", nothing), JobHandler("a", nothing)])


def test_a_period_of_less_than_a_second_is_refused() -> None:
    with pytest.raises(Invalid, match="more than once a second"):
        Handlers([JobHandler("a", nothing, every_seconds=0.5)])


def test_handlers_are_found_by_kind() -> None:
    once, often = JobHandler("a", nothing), JobHandler("b", nothing, every_seconds=5)
    handlers = Handlers([once, often])
    assert handlers.get("a") is once
    assert handlers.get("c") is None
    assert handlers.periodic() == [often]
