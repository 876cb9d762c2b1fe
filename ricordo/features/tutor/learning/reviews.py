"""Compute with the FSRS scheduler when a skill is due for review.

The schedule is computed from the dated results of a student's observations. It is not stored, so a
deleted or forgotten observation no longer counts.
"""

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from ricordo.domain.clock import to_datetime, to_micros, zone
from ricordo.features.knowledge.facts.records import UserFact
from ricordo.features.tutor.learning.records import TRIED, Result, result_of

if TYPE_CHECKING:
    from fsrs import Scheduler

_RATINGS: dict[Result, int] = {"failed": 1, "hard": 2, "good": 3, "easy": 4}


@cache
def scheduler() -> "Scheduler":
    """Return a scheduler with intervals of days and without random variation.

    FSRS's steps of minutes are for flashcards. Without them the first result leads to an interval
    of days.
    """
    from fsrs import Scheduler  # imported with the first review: it takes 0.1 s

    return Scheduler(learning_steps=(), relearning_steps=(), enable_fuzzing=False)


def due_at(observations: Sequence[UserFact]) -> int | None:
    """Return the time when the skill of these observations is due, in microseconds UTC.

    Returns None if the student never tried the skill.

    Args:
        observations: The observations about one skill, in any order.
    """
    results = [(fact.said_at, result_of(fact)) for fact in observations]
    reviews = sorted((at, _RATINGS[result]) for at, result in results if result in TRIED)
    return _due_after(tuple(reviews)) if reviews else None


@lru_cache(maxsize=20_000)
def _due_after(reviews: tuple[tuple[int, int], ...]) -> int:
    """Return the time when a card is due after these reviews.

    A review is a time in microseconds and an FSRS rating.
    """
    from fsrs import Card, Rating

    first, _ = reviews[0]
    card = Card(card_id=1, due=to_datetime(first))
    for at, rating in reviews:
        card, _ = scheduler().review_card(card, Rating(rating), to_datetime(at))
    return to_micros(card.due)


def end_of_day(now: int, timezone: str) -> int:
    """Return the end of the day in this time zone, in microseconds UTC.

    Args:
        now: A time of the day, in microseconds.
        timezone: The IANA name of the zone.

    Raises:
        Invalid: There is no such zone.
    """
    day = to_datetime(now).astimezone(zone(timezone)).date() + timedelta(days=1)
    return to_micros(datetime.combine(day, time(), zone(timezone)))
