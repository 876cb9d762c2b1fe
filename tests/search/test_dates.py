from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from ricordo.search import dates
from ricordo.search.dates import named_times

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(year: int, month: int, day: int, hour: int = 0) -> int:
    return (datetime(year, month, day, hour, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


NOW = micros(2026, 11, 18, 15)  # a Wednesday


def named(query: str) -> list[str]:
    """Return the named ranges as `first day..last day`."""
    days = [
        (EPOCH + timedelta(microseconds=start), EPOCH + timedelta(microseconds=end - 1))
        for start, end in named_times(query, NOW)
    ]
    return [f"{first:%Y-%m-%d}..{last:%Y-%m-%d}" for first, last in days]


def day(text: str) -> list[str]:
    return [f"{text}..{text}"]


def cases(table: str) -> list[tuple[str, str]]:
    """Return each question of a table with its range.

    A line of the table has a range, then questions between bars.
    """
    rows = [line.split(" = ") for line in table.strip().splitlines()]
    return [(query, span) for span, queries in rows for query in queries.split(" | ")]


ABSOLUTE = """
2023-05-07..2023-05-07 = on 7 May 2023 | May 7, 2023 | may 7th 2023 | the 7th of May, 2023 | 2023-05-07 | 2023/5/7 | 7.5.2023
2023-05-07..2023-05-07 = 07.05.2023 | am 7. Mai 2023 | le 7 mai 2023 | el 7 de mayo de 2023 | il 7 maggio 2023 | 7-5-2023
2023-05-07..2023-05-07 = em 7 de maio de 2023 | op 7 mei 2023 | 7 мая 2023 года | 7 MAY 2023? | (7 May 2023)
2023-05-01..2023-05-31 = in May 2023 | 2023-05 | May of 2023 | im Mai 2023 | en mai 2023 | mayo de 2023
2023-03-01..2023-03-31 = in March 2023 | im März 2023 | en mars 2023 | em março de 2023 | в марте 2023
2022-01-01..2022-12-31 = in 2022 | in early 2022? | since 2022 | im Jahr 2022 | en 2022 | nel 2022 | в 2022 году
2022-06-01..2022-08-31 = summer 2022 | the summer of 2022 | im Sommer 2022 | l'été 2022 | летом 2022
2021-09-01..2021-11-30 = fall 2021
2022-08-01..2022-08-01 = le 1er août 2022
2024-02-29..2024-02-29 = 29 February 2024
2022-12-01..2022-12-31 = in December 2022
2023-02-01..2023-02-28 = 30 February 2023
"""
RELATIVE = """
2026-11-17..2026-11-17 = yesterday | gestern | ayer | ieri | ontem | gisteren | вчера | last night
2026-11-17..2026-11-17 = Qu'avons-nous fait hier avec les enfants ?
2026-11-18..2026-11-18 = today | heute | aujourd’hui | hoy | oggi | hoje | vandaag | сегодня | on Wednesday
2026-11-16..2026-11-16 = the day before yesterday | vorgestern | позавчера | last Monday | lundi dernier
2026-11-09..2026-11-15 = last week | letzte Woche | la semaine dernière | la semana pasada | settimana scorsa
2026-11-09..2026-11-15 = semana passada | vorige week | на прошлой неделе | a week ago | vor einer Woche
2026-10-01..2026-10-31 = last month | letzten Monat | le mois dernier | el mes pasado | mês passado
2026-10-01..2026-10-31 = il mese scorso | vorige maand | в прошлом месяце | last October
2025-01-01..2025-12-31 = last year | letztes Jahr | l'année dernière | el año pasado | в прошлом году
2026-11-15..2026-11-15 = 3 days ago | vor drei Tagen | il y a trois jours | hace 3 días | tre giorni fa
2026-11-15..2026-11-15 = há três dias | drie dagen geleden | три дня назад | last Sunday
2026-11-13..2026-11-13 = on Friday | am Freitag | vendredi | el viernes | venerdì | sexta-feira | в пятницу
2026-11-11..2026-11-11 = last Wednesday
2026-11-14..2026-11-15 = last weekend
2026-11-16..2026-11-22 = this week
2026-06-01..2026-08-31 = last summer
2025-12-01..2025-12-31 = last December
2026-09-01..2026-09-30 = a couple of months ago
2025-09-01..2025-09-30 = 14 months ago
"""
SPANS = """
2025-05-01..2025-07-31 = from May to July 2025 | May-July 2025 | May – July 2025 | between May and July 2025
2025-05-01..2025-07-31 = von Mai bis Juli 2025 | de mai à juillet 2025 | de mayo a julio de 2025 | da maggio a luglio 2025
2025-05-01..2025-07-31 = de maio a julho de 2025 | van mei tot juli 2025 | с мая по июль 2025
2024-05-03..2024-05-09 = 3-9 May 2024 | May 3-9, 2024 | from the 3rd to the 9th of May 2024 | 2024-05-03 to 2024-05-09
2024-05-03..2024-05-09 = vom 3. bis zum 9. Mai 2024 | du 3 au 9 mai 2024 | del 3 al 9 de mayo de 2024 | dal 3 al 9 maggio 2024
2024-05-03..2024-05-09 = van 3 tot en met 9 mei 2024 | с 3 по 9 мая 2024 | zwischen dem 3. und dem 9. Mai 2024
2024-05-03..2024-05-09 = entre le 3 et le 9 mai 2024 | tra il 3 e il 9 maggio 2024 | между 3 и 9 мая 2024
2024-05-03..2025-06-30 = 3 May 2024 to June 2025 | What happened between 3 May 2024 and June 2025?
2024-11-01..2025-02-28 = November to February 2025
2019-01-01..2021-12-31 = 2019-2021 | from 2019 to 2021 | between 2019 and 2021
2026-11-16..2026-11-18 = from Monday to Wednesday
2026-11-09..2026-11-17 = last week to yesterday
"""
NO_TIMES = (
    "| What did Caroline say? | May I come in? | I may march 7 miles | this may be it | they "
    "march on | may 7 people come | I ran 2022 steps | in 2022 steps | for 2000 people | march "
    "2000 miles | room 2022 | the 1990s | in the 1990s | GPT-4 | 3.14 | version 1.2.2023.4 | "
    "2023-13-45 | 31.2.2023 | 99999 years ago | 99999999999 days ago | in 20225 | Is he on Mars? "
    "| a letter of Marco | every Friday | jeden Montag | on Fridays | Wer ist hier? | the fall of "
    "Rome | 3-9 may help | room 12-14 march | call 555-2019-2021 | from 3 to 9 | "
    "chapter 3 - June | "
    "in sept | marching | Augustine | an hour ago | call 2023-05-07-11"
)


def test_times_are_recognized_in_many_forms_and_languages():
    for query, span in [*cases(ABSOLUTE), *cases(RELATIVE), *cases(SPANS)]:
        assert named(query) == [span], query


def test_some_questions_name_several_times() -> None:
    years = range(2026, 2020, -1)
    for query, found in {
        "winter 2022": ["2021-12-01..2022-02-28", "2022-12-01..2023-02-28"],
        "5/7/2023": day("2023-07-05") + day("2023-05-07"),
        "5/13/2023": day("2023-05-13"),
        "5/5/2023": day("2023-05-05"),
        "Between March 2022 and 3 July 2023, or in 2019?": [
            "2022-03-01..2023-07-03",
            "2019-01-01..2019-12-31",
        ],
        "in December": [f"{year}-12-01..{year}-12-31" for year in years if year < 2026],
        "on June 7": [f"{year}-06-07..{year}-06-07" for year in years],
        "Tell me about May 7": [f"{year}-05-07..{year}-05-07" for year in years],
        "on 29 February": day("2024-02-29"),
        "What did we do from May to July?": [f"{year}-05-01..{year}-07-31" for year in years],
        "between November and February": [
            f"{year - 1}-11-01..{year}-02-{29 if year == 2024 else 28}" for year in years
        ],
        "from 5/7/2023 to 9/7/2023": ["2023-07-05..2023-07-09", "2023-05-07..2023-09-07"],
        "on Monday and Tuesday": day("2026-11-16") + day("2026-11-17"),
        "Monday to Friday": day("2026-11-16") + day("2026-11-13"),
        "from 30 February to 3 March 2024": day("2024-03-03"),
    }.items():
        assert named(query) == found, query
    for (
        query
    ) in "in June|What did we do in June?|im Juni|en juin|em junho|a giugno|in juni|в июне".split(
        "|"
    ):
        assert named(query) == [f"{year}-06-01..{year}-06-30" for year in years], query


def test_text_that_only_looks_like_a_time_names_none():
    for query in NO_TIMES.split("|"):
        assert named(query.strip()) == [], query


@given(
    st.text()
    | st.text("0123456789./- ", max_size=60)
    | st.lists(
        st.sampled_from(
            "in may last 7 2023 2000 days ago on the of monday vor hier est le from to - and 3 july "
            "between".split()
        )
    ).map(" ".join),
    st.integers(0, micros(2090, 1, 1)),
)
@example("in may " * 1_000, NOW)
@example("\ud800 \x00 ٣ мая ٢٠٢٣, ² days ago ①", NOW)
def test_every_time_range_ends_after_its_start(query, now):
    found = named_times(query, now)
    assert len(found) == len(set(found))
    assert all(start < end for start, end in found)


def test_the_tables_are_spelled_as_questions_are_folded():
    tables = (
        *(dates.MONTHS, dates.WEEKDAYS, dates.SEASONS, dates.NUMBERS),
        *(dates.PREPOSITIONS, dates.THINGS, dates.EVERY, *dates.SPANS.values()),
    )
    assert {word for table in tables for word in table if dates._fold(word) != word} == set()
    assert (
        dates.MONTHS.keys() >= dates.AMBIGUOUS | dates.NEVER_ALONE | dates.ALONE_ONLY_AFTER.keys()
    )
