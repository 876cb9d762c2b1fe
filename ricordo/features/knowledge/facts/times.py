"""The time that a sentence is about, and the time for which its fact holds. Pure.

`search/dates.py` reads the dates, for questions and for sentences alike. Only three things are read
here, since a question does not need them: words for times to come ("next week"), the coming date of
a plan ("in May"), and the two ends of a loose span ("from May, I think, to July"). Messages that a
question looks for lie in the past, and a question may mean several years at once.
"""

import re
from dataclasses import replace
from datetime import date, datetime, timedelta

from ricordo.domain.clock import DAY, to_datetime, to_micros
from ricordo.features.knowledge.facts.records import FactDraft, Precision, StatedTime
from ricordo.search.dates import named_times

# The most days that a time of each precision covers.
_LENGTHS: tuple[tuple[int, Precision], ...] = (
    (1, "day"),
    (7, "week"),
    (31, "month"),
    (93, "season"),
)
_TOMORROW = re.compile(r"\b(?:tomorrow|demain|mañana|domani)\b|\bmorgen\b(?! früh)", re.IGNORECASE)
_NEXT_WEEK = re.compile(
    r"\b(?:next week|nächste woche|la semaine prochaine|la próxima semana|la semana que viene"
    r"|la settimana prossima|la prossima settimana)\b",
    re.IGNORECASE,
)
_NEXT_MONTH = re.compile(
    r"\b(?:next month|nächsten monat|le mois prochain|el próximo mes|el mes que viene"
    r"|il mese prossimo|il prossimo mese)\b",
    re.IGNORECASE,
)
_NEXT_YEAR = re.compile(
    r"\b(?:next year|nächstes jahr|l['’]année prochaine|el próximo año|el año que viene"
    r"|l['’]anno prossimo)\b",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_UNTIL = re.compile(
    r"\b(?:until|till|bis|jusqu['’](?:à|en|au)|hasta|fino a(?:l)?)\b", re.IGNORECASE
)
_SPAN = re.compile(
    r"\b(?:from|between|von|zwischen|de|entre|desde|dal|da|tra)\b.{1,40}?"
    r"\b(?:to|until|and|bis|und|à|et|a|hasta|y|al|e)\b",
    re.IGNORECASE,
)
# For these facts, a date is the value rather than the time from which they hold.
_DATED_SLOTS = ("birthday", "name", "age")


def stated_time(sentence: str, said_at: int, *, is_ahead: bool = False) -> StatedTime | None:
    """Return the time that a sentence names; None if it names none.

    Args:
        sentence: One sentence.
        said_at: The time of its message in microseconds, to which words such as "tomorrow" refer.
        is_ahead: A month or day without a year means the next such date, as for a plan; otherwise
            the last one.
    """
    if is_ahead and (time := _time_ahead(sentence, said_at)):
        return time
    ranges = named_times(sentence, said_at)
    if not ranges:
        return None
    start, end = ranges[0]
    # A date without a year gives ranges in earlier years too. They come before the end of a span in
    # the list. So the end is the first range that begins after the start.
    last = next((later for later in ranges[1:] if later[0] > start), None)
    if last and _SPAN.search(sentence):
        return StatedTime(start, last[1], _precision(*ranges[0]))
    return StatedTime(start, end, _precision(start, end))


def _precision(start: int, end: int) -> Precision:
    days = (end - start) // DAY
    return next((name for length, name in _LENGTHS if days <= length), "year")


def _time_ahead(sentence: str, said_at: int) -> StatedTime | None:
    today = to_datetime(said_at).date()
    if _TOMORROW.search(sentence):
        return _days(today + timedelta(days=1), today + timedelta(days=2))
    if _NEXT_WEEK.search(sentence):
        monday = today + timedelta(days=7 - today.weekday())
        return _days(monday, monday + timedelta(days=7))
    if _NEXT_MONTH.search(sentence):
        first = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        return _days(first, (first + timedelta(days=32)).replace(day=1))
    if _NEXT_YEAR.search(sentence):
        return _days(date(today.year + 1, 1, 1), date(today.year + 2, 1, 1))
    if _YEAR.search(sentence):
        return None
    # Read the sentence as of the end of next year. Then the last such date is the next one.
    ahead = named_times(sentence, _start_of(date(today.year + 1, 12, 31)))
    coming = sorted(span for span in ahead if span[1] > said_at)
    if coming:
        return StatedTime(*coming[0], _precision(*coming[0]))
    return None


def _days(start: date, end: date) -> StatedTime:
    return StatedTime(
        _start_of(start), _start_of(end), _precision(_start_of(start), _start_of(end))
    )


def _start_of(day: date) -> int:
    return to_micros(datetime(day.year, day.month, day.day))  # noqa: DTZ001 - read as UTC


def with_time(draft: FactDraft, said_at: int) -> FactDraft:
    """Return the draft with the time that its sentence names.

    Args:
        draft: The draft; one that has a time is returned unchanged.
        said_at: The time of its message in microseconds.
    """
    if draft.time is not None:
        return draft
    return replace(draft, time=stated_time(draft.sentence, said_at, is_ahead=draft.kind == "plan"))


def holding(draft: FactDraft, said_at: int) -> tuple[int, int | None]:
    """Return the start and end of the time for which a fact holds, according to its sentence.

    Args:
        draft: The fact, with the time that its sentence names.
        said_at: The time of its message in microseconds.

    Returns:
        Both in microseconds; an end of None means that it still holds.
    """
    time = draft.time
    if time is None or draft.slot in _DATED_SLOTS:
        return said_at, None
    if draft.kind == "plan":
        return min(said_at, time.start), time.end
    if draft.has_ended:
        return time.start, time.end
    if _UNTIL.search(draft.sentence) and time.end > said_at:
        return said_at, time.end
    return time.start, None
