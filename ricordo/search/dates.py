"""Times in questions ("in May 2023", "7.5.2023", "last week") as ranges of time.

Times of messages are compared with these ranges, so words for times to come ("next week") are not
read. The dates of facts are read here too; `features/knowledge/facts/times.py` adds what only facts
need. Eight languages are known. A word that may mean something else is not read as a time: "may I",
"march on", "2022 steps" name no time. Days are days in UTC. The names of months, days and spans are
in `data/calendar.toml`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from operator import attrgetter
from typing import Final

from ricordo.search.words import language_of, load_words

# A month without a year may be this year's, or the same month of one of the five years before.
YEARS_BACK: Final = 5
QUERY_LENGTH: Final = 1_000  # characters of a question that are read
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _by_word(lines: Iterable[tuple[int | str, str]]) -> dict[str, int]:
    return {word: int(number) for number, line in lines for word in line.split()}


_calendar = load_words("calendar")
MONTHS: Final = _by_word(enumerate(_calendar["months"], start=1))
WEEKDAYS: Final = _by_word(enumerate(_calendar["weekdays"]))
SEASONS: Final = _by_word(_calendar["seasons"].items())
NUMBERS: Final = _by_word(_calendar["numbers"].items())
AMBIGUOUS, NEVER_ALONE, EVERY, THINGS = (
    frozenset(_calendar[name].split()) for name in ("ambiguous", "never_alone", "every", "things")
)
ALONE_ONLY_AFTER: Final[dict[str, list[str]]] = _calendar["alone_only_after"]
PREPOSITIONS: Final[list[str]] = _calendar["prepositions"]
# An entry of COUNTED has a kind and a regular expression. An entry of RELATIVE has a kind, the
# number of spans back, and a regular expression.
COUNTED: Final[list[tuple[str, str]]] = list(_calendar["counted"].items())
RELATIVE: Final[list[tuple[str, int, str]]] = [
    (entry["kind"], entry["back"], "|".join(entry["said"])) for entry in _calendar["relative"]
]

SPANS: Final[dict[str, list[str]]] = _calendar["spans"]

Days = tuple[date, date]  # half-open


@dataclass(frozen=True, slots=True)
class _NamedTime:
    """A time at text[start:end], with the days that it may mean."""

    start: int
    end: int
    days: list[Days]


_Reader = Callable[[re.Match[str], date, bool], list[Days]]


# Patterns accept any word as a month, and the tables decide. This is faster than patterns with all
# month names.
_WORD = r"[^\W\d_]+(?:-feira)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)(?![\d.,:%-]*\d|%|\w)"
_DAY_NUMBER = r"0?[1-9]|[12]\d|3[01]"
_ORDINAL = r"(?:st|nd|rd|th|er|e|o|a)\b|[.°]"
_OF_WORD = r"(?:of|de|del|di|do)\b"
_DAY = rf"(?P<day>{_DAY_NUMBER})(?P<ordinal>{_ORDINAL})?"
_OF = rf"(?:\s+{_OF_WORD})?"
_TAIL = rf"(?:,?{_OF}\s+{_YEAR})"
_LAST = (
    r"(?P<last>last|this|past|letzte[nrms]?|diese[nrms]?|vorige[nrms]?|vorig|afgelopen"
    r"|(?:во? )?прошл(?:ом|ую|ыи|ое|ым|ои|ого)|scors[oa])\s+"
)
_AFTER = r"\s+(?:dernier|derniere|pasad[oa]|scors[oa]|passad[oa])(?!\w)"
_AGO = r"\s+(?:ago|fa|atras|geleden|назад)(?!\w)"
_AMOUNT = rf"(?P<amount>\d{{1,5}}|{_WORD})\s+(?:of\s+)?(?P<unit>{_WORD})(?!\w)"
_EARLY = r"(?:(?:the|early|late|mid|anfang|ende|mitte|debut|fin|principios|finales|inizio|begin|eind|начале|конце)[\s-]+)?"
_BEFORE = re.compile(
    rf"(?<!\w)(?P<preposition>{'|'.join(sorted(PREPOSITIONS, key=len, reverse=True))})\s+{_EARLY}$"
)
_WORD_BEFORE = re.compile(r"([^\W\d_]+)\s+$")
_WORD_AFTER = re.compile(r"\s+([^\W\d_]+)")
_HIER = re.compile(r"(?<![\w-])hier(?!\w)")
_NAME_INSIDE = re.compile(r"\S\s+(?:May|March|Mars|Mar|Marco)\b")
_YEAR_FIRST = re.compile(
    r"(?<![\w.])(?P<year>(?:19|20)\d\d)(?P<by>[-/.])(?P<first>\d\d?)(?P=by)(?P<second>\d\d?)(?![\d-])"
)


_MONTH = "|".join(sorted(MONTHS, key=len, reverse=True))


def _any_of(*names: str) -> str:
    """Return the pattern of all words in these lists of `SPANS`, longest first."""
    words = {word for name in names for word in SPANS[name]}
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


def _span_end(number: int) -> str:
    """Return the pattern of one end of a span: a day, a month, a year, or some of them.

    It also matches the empty string. `_is_span` checks that an end has the needed parts.
    """
    of = rf"(?: {_OF_WORD})?"
    day = rf"(?:{_DAY_NUMBER})(?!\d)(?:{_ORDINAL})?"
    return (
        rf"(?:(?P<day{number}>{day}){of} ?)?(?:(?P<word{number}>{_MONTH})(?!\w)\.?)?"
        rf"(?: (?P<late{number}>{day}))?(?:,?{of} ?(?P<year{number}>(?:19|20)\d\d))?"
    )


_DASH = " ?[-–—] ?"
_ARTICLE = f"(?:(?:{_any_of('articles')}) )?"
_JOINED = rf"(?:{_DASH}| (?P<join>{_any_of('to', 'and')}) {_ARTICLE})"
_OPENED = rf"(?:(?P<opening>{_any_of('from', 'between')}) {_ARTICLE})"
_NAMED_SPAN = re.compile(
    rf"(?<![\w-])(?=\w){_OPENED}?{_span_end(1)}{_JOINED}{_span_end(2)}(?![\w-])"
)
_DIGIT = re.compile(r"\d")
_DIGITS = re.compile(r"\d+")
_BETWEEN_TIMES = re.compile(_JOINED)
# A time that was read is blanked. A year next to it may be the other end of a span.
_AFTER_TIME = re.compile(rf"\x00{_JOINED}$")
_BEFORE_TIME = re.compile(rf"{_JOINED}\x00")
_OPENING = re.compile(rf"(?<!\w){_OPENED}$")


def named_times(query: str, now: int) -> list[tuple[int, int]]:
    """Return the ranges [start, end) in µs UTC that a question names, in the question's order.

    A month without a year gives several ranges, newest first: one in this year and one in each of
    the `YEARS_BACK` years before. So does a day or a span of such months. Other times without a
    year, such as "last May" or "Monday", give one range: the latest such time. No range of a time
    without a year begins after `now`. Two times that a word such as "to" joins give one range, from
    the start of the first to the end of the second.

    Args:
        query: The question. Its first 1,000 characters are read.
        now: The time of the question in microseconds UTC.
    """
    text = " ".join(_fold(query[:QUERY_LENGTH]).split())
    if "hier" in text and language_of(query) == "fr":
        text = _HIER.sub("yesterday", text)  # in German and Dutch it means "here"
    today = (_EPOCH + timedelta(microseconds=now)).date()
    is_written_as_name = _NAME_INSIDE.search(query[:QUERY_LENGTH]) is not None
    groups: list[_NamedTime] = []
    whole = text
    for pattern, read in _READERS if _DIGIT.search(text) else _READERS_OF_WORDS:
        # A match is blanked for later patterns, so that "7 May 2023" does not also name May.
        for match in list(pattern.finditer(text)):
            if days := read(match, today, is_written_as_name):
                groups.append(_NamedTime(match.start(), match.end(), days))
                text = (
                    text[: match.start()]
                    + "\x00" * (match.end() - match.start())
                    + text[match.end() :]
                )
    groups.sort(key=attrgetter("start"))
    ordered = [days for group in _with_spans(groups, whole) for days in group.days]
    return [(_microseconds(start), _microseconds(end)) for start, end in dict.fromkeys(ordered)]


def _microseconds(day: date) -> int:
    return (datetime.combine(day, time(), UTC) - _EPOCH) // timedelta(microseconds=1)


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    marks_apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in marks_apart if not unicodedata.combining(letter)).replace(
        "’", "'"
    )


def _month_of(year: int, month: int, months: int = 1) -> Days:
    first = year * 12 + month - 1
    end = first + months
    return date(first // 12, first % 12 + 1, 1), date(end // 12, end % 12 + 1, 1)


def _day_of(year: int, month: int, day: int) -> list[Days]:
    try:
        start = date(year, month, day)
    except ValueError:
        return []
    return [(start, start + timedelta(days=1))]


def _preposition(match: re.Match[str]) -> str:
    """Return the preposition of time right before a match; "" if there is none."""
    before = _BEFORE.search(match.string, max(0, match.start() - 40), match.start())
    if before:
        return before["preposition"]
    return ""


def _counts_things(match: re.Match[str]) -> bool:
    after = _WORD_AFTER.match(match.string, match.end())
    return after is not None and after[1] in THINGS


def _numbers(match: re.Match[str], _: date, __: bool) -> list[Days]:
    """Return the day of 2023-05-07 or 7.5.2023, and both days of 5/7/2023.

    5/7/2023 is the fifth of July for some, and the seventh of May for others.
    """
    year, first, second = int(match["year"]), int(match["first"]), int(match["second"])
    if match.re is _YEAR_FIRST:
        return _day_of(year, first, second)
    days = _day_of(year, second, first)
    if match["by"] != "/":
        return days
    return days + [day for day in _day_of(year, first, second) if day not in days]


def _year_and_month(match: re.Match[str], _: date, __: bool) -> list[Days]:
    month = int(match["number"])
    if 1 <= month <= 12:
        return [_month_of(int(match["year"]), month)]
    return []


def _day_and_month(match: re.Match[str], today: date, is_name: bool) -> list[Days]:
    name, day = match["word"], int(match["day"])
    if name not in MONTHS:
        return []
    if match["year"]:
        return _day_of(int(match["year"]), MONTHS[name], day)
    is_meant = name not in AMBIGUOUS or is_name or match["ordinal"] or _preposition(match)
    if not is_meant or (match.end() == match.end("day") and _counts_things(match)):
        return []
    days = [
        day_range
        for year in range(today.year, today.year - YEARS_BACK - 1, -1)
        for day_range in _day_of(year, MONTHS[name], day)
    ]
    return [day_range for day_range in days if day_range[0] <= today]


def _with_year(match: re.Match[str], _: date, __: bool) -> list[Days]:
    """Return the month or season of a year, as in "May 2023"."""
    word, year = match["word"], int(match["year"])
    if _counts_things(match):
        return []
    if word in MONTHS:
        return [_month_of(year, MONTHS[word])]
    if word in SEASONS:
        return _season_of(year, word)
    return []


def _season_of(year: int, season: str) -> list[Days]:
    if SEASONS[season] == 12:
        return [_month_of(year, 0, 3), _month_of(year, 12, 3)]
    return [_month_of(year, SEASONS[season], 3)]


def _last_one(match: re.Match[str], today: date, _: bool) -> list[Days]:
    """Return the days of "last May", "last summer" or "last Monday".

    It is the latest month that has begun, the latest season that has ended, or the latest such
    weekday before today.
    """
    word = match["word"]
    years = (today.year, today.year - 1)
    if word in WEEKDAYS:
        return [_span(today, "day", (today.weekday() - WEEKDAYS[word] - 1) % 7 + 1)]
    if word in SEASONS:
        seasons = [days for year in years for days in reversed(_season_of(year, word))]
        return [days for days in seasons if days[1] <= today][:1]
    # In "this may", the word is more likely the verb.
    is_doubtful = word in AMBIGUOUS and match["last"] in ("this", "past")
    if word not in MONTHS or is_doubtful:
        return []
    months = (_month_of(year, MONTHS[word]) for year in years)
    return [days for days in months if days[0] <= today][:1]


def _word_alone(match: re.Match[str], today: date, _: bool) -> list[Days]:
    """Return the days of a weekday or a month that is named without a day or a year.

    A weekday is the latest one, perhaps today. A month is read only after a preposition. It gives
    this year's, if it has begun, and those of the `YEARS_BACK` years before.
    """
    word = match[0]
    if word in WEEKDAYS:
        before = _WORD_BEFORE.search(match.string, max(0, match.start() - 20), match.start())
        is_repeated = before is not None and before[1] in EVERY
        if is_repeated:
            return []
        return [_span(today, "day", (today.weekday() - WEEKDAYS[word]) % 7)]
    if word not in MONTHS or word in NEVER_ALONE:
        return []
    preposition = _preposition(match)
    if not preposition or preposition not in ALONE_ONLY_AFTER.get(word, {preposition}):
        return []
    months = [
        _month_of(year, MONTHS[word]) for year in range(today.year, today.year - YEARS_BACK - 1, -1)
    ]
    return [days for days in months if days[0] <= today]


def _year_alone(match: re.Match[str], _: date, __: bool) -> list[Days]:
    is_time = (
        _preposition(match)
        or _AFTER_TIME.search(match.string, max(0, match.start() - 30), match.start())
        or _BEFORE_TIME.match(match.string, match.end())
    )
    if is_time and not _counts_things(match):
        return [_month_of(int(match["year"]), 1, 12)]
    return []


def _relative(match: re.Match[str], today: date, _: bool) -> list[Days]:
    name, count = next(
        (kind, count) for kind, count, pattern in RELATIVE if re.fullmatch(pattern, match[0])
    )
    return [_span(today, name, count)]


def _counted_back(match: re.Match[str], today: date, _: bool) -> list[Days]:
    amount = match["amount"]
    kind = next((kind for kind, pattern in COUNTED if re.fullmatch(pattern, match["unit"])), "")
    count = int(amount) if amount.isdecimal() else NUMBERS.get(amount)
    limit = {"day": 36_500, "week": 5_200, "month": 1_200, "year": 100}.get(kind, 0)
    if count is not None and count <= limit:
        return [_span(today, kind, count)]
    return []


def _span(today: date, kind: str, count: int) -> Days:
    """Return the day, week (from Monday), weekend, month or year `count` spans ago."""
    if kind == "month":
        return _month_of(today.year, today.month - count)
    if kind == "year":
        return _month_of(today.year - count, 1, 12)
    monday = today - timedelta(days=today.weekday())
    start, days = {
        "day": (today, 1),
        "week": (monday, 7),
        "weekend": (monday + timedelta(days=5), 2),
    }[kind]
    start -= timedelta(days=count if kind == "day" else 7 * count)
    return start, start + timedelta(days=days)


def _named_span(match: re.Match[str], today: date, is_name: bool) -> list[Days]:
    """Return the days from one end to the other, as in "3-9 May" or "from May to July 2025".

    The first end may lack what the second end has: "3" of "3-9 May", the year of "May to July
    2025". A span without years may be this year's or one of the years before.
    """
    if not _is_span(match, is_name):
        return []
    last_year = match["year2"]
    if last_year:
        return _days_between(match, int(match["year1"] or last_year), int(last_year))
    if match["year1"]:
        return []
    years = range(today.year, today.year - YEARS_BACK - 1, -1)
    spans = [days for year in years for days in _days_between(match, year, year)]
    return [days for days in spans if days[0] <= today]


def _is_span(match: re.Match[str], is_name: bool) -> bool:
    """Return True if both ends of the match are times, and are meant as times."""
    if match["join"] in SPANS["and"] and match["opening"] not in SPANS["between"]:
        return False
    months = {match["word1"], match["word2"]} - {None}
    first_has_day = _has_day(match, 1)
    if not months:
        # Years as in "2019 to 2021". Days without a month are no times.
        return bool(match["year1"] and match["year2"]) and not (first_has_day or match["day2"])
    if match["word2"] is None and not (first_has_day and match["day2"]):
        return False  # not as in "May 3 to 9"
    if match["word1"] is None and not (match["year1"] or (match["day1"] and _has_day(match, 2))):
        return False  # not as in "3 to 9 May" or "2024 to May 2025"
    doubtful = AMBIGUOUS if first_has_day else AMBIGUOUS | NEVER_ALONE
    return bool(match["opening"] or match["year2"]) or is_name or not months & doubtful


def _has_day(match: re.Match[str], number: int) -> bool:
    """Return True if this end of a span, the first or the second, names a day of a month."""
    return bool(match[f"day{number}"] or match[f"late{number}"])


def _days_between(match: re.Match[str], first_year: int, last_year: int) -> list[Days]:
    """Return the days from the first end to the second; none if an end is no day of the calendar.

    Without a year of its own, a first end that comes later in the year lies in the year before:
    "November to February 2025".
    """
    starts = _end_days(match, 1, first_year)
    ends = _end_days(match, 2, last_year)
    if not (starts and ends):
        return []
    if starts[0][0] >= ends[0][1] and not match["year1"]:
        starts = _end_days(match, 1, first_year - 1)
    if not starts or starts[0][0] >= ends[0][1]:
        return []
    return [(starts[0][0], ends[0][1])]


def _end_days(match: re.Match[str], number: int, year: int) -> list[Days]:
    """Return the days of one end of a span in this year."""
    word = match[f"word{number}"]
    day = _DIGITS.match(match[f"day{number}"] or match[f"late{number}"] or "")
    if word is None and day is not None:
        word = match["word1"] or match["word2"]  # of the other end
    if word is None:
        return [_month_of(year, 1, 12)]
    if day is None:
        return [_month_of(year, MONTHS[word])]
    return _day_of(year, MONTHS[word], int(day[0]))


def _with_spans(groups: Sequence[_NamedTime], text: str) -> list[_NamedTime]:
    """Replace two neighbouring times by one if they are the ends of a span.

    Args:
        groups: The times in the order of the text.
        text: The text in which they were found.
    """
    joined: list[_NamedTime] = []
    for group in groups:
        if joined and (span := _joined(joined[-1], group, text)):
            joined[-1] = span
        else:
            joined.append(group)
    return joined


def _joined(first: _NamedTime, last: _NamedTime, text: str) -> _NamedTime | None:
    """Return the span between two times; None if they are separate times."""
    between = _BETWEEN_TIMES.fullmatch(text, first.end, last.start)
    if between is None or len(first.days) != len(last.days):
        return None
    if between["join"] in SPANS["and"]:
        opening = _OPENING.search(text, max(0, first.start - 20), first.start)
        if opening is None or opening["opening"] not in SPANS["between"]:
            return None
    spans = [
        (start[0], end[1]) for start, end in zip(first.days, last.days, strict=True) if start < end
    ]
    if len(spans) < len(first.days):
        return None
    return _NamedTime(first.start, last.end, spans)


# The order matters, since a match of one pattern is hidden from later ones.
_READERS: Final[list[tuple[re.Pattern[str], _Reader]]] = [
    (_YEAR_FIRST, _numbers),
    (
        re.compile(
            r"(?<![\w.])(?P<first>\d\d?)(?P<by>[./-])\s?(?P<second>\d\d?)(?P=by)\s?(?P<year>(?:19|20)\d\d)(?![\d-])(?!\.\d)"
        ),
        _numbers,
    ),
    (re.compile(r"(?<![\w.-])(?P<year>(?:19|20)\d\d)-(?P<number>\d\d)(?![\w-])"), _year_and_month),
    (_NAMED_SPAN, _named_span),
    (re.compile(rf"(?<!\w){_DAY}{_OF}\s*(?P<word>{_WORD})\b\.?{_TAIL}?"), _day_and_month),
    (
        re.compile(rf"(?<!\w)(?P<word>{_WORD})\.?\s+(?:the\s+)?{_DAY}(?![\d.:,%]*\d|%|\w){_TAIL}?"),
        _day_and_month,
    ),
    (re.compile(rf"(?<!\w)(?P<word>{_WORD})\.?{_TAIL}"), _with_year),
    (
        re.compile(rf"(?<!\w)(?:{'|'.join(pattern for _, __, pattern in RELATIVE)})(?!\w)"),
        _relative,
    ),
    (re.compile(rf"(?<!\w){_LAST}(?P<word>{_WORD})(?!\w)"), _last_one),
    (re.compile(rf"(?<!\w)(?P<word>{_WORD})(?P<last>{_AFTER})"), _last_one),
    (re.compile(rf"(?<!\w)(?:vor|hace|ha|il y a)\s+{_AMOUNT}"), _counted_back),
    (re.compile(rf"(?<!\w){_AMOUNT}{_AGO}"), _counted_back),
    (re.compile(rf"(?<![\w-]){_WORD}(?![\w'-])"), _word_alone),
    (re.compile(rf"(?<!\w){_YEAR}"), _year_alone),
]
# Patterns that can match without a digit, since most questions have none.
_READERS_OF_WORDS: Final = [
    (pattern, read)
    for pattern, read in _READERS
    if read in (_named_span, _relative, _last_one, _counted_back, _word_alone)
]
