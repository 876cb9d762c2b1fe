"""How eight languages name months, days, seasons and spans of time: small letters, without accents, as `dates.py` folds them.

English, German, French, Spanish, Italian, Portuguese, Dutch, Russian. Russian й and ё are folded to и and е.
"""

from typing import Final


def _numbered(*lines: str) -> dict[str, int]:
    """Each word to the number of its line, from 1."""
    return {word: number for number, line in enumerate(lines, start=1) for word in line.split()}


MONTHS: Final = _numbered(
    "january jan januar janner janvier janv enero gennaio janeiro januari январь января январе",
    "february feb februar feber fevrier fevr febrero febbraio fevereiro februari февраль февраля феврале",
    "march mar marz maerz mars marzo marco maart март марта марте",
    "april apr avril avr abril abr aprile апрель апреля апреле",
    "may mai mayo maggio maio mei маи мая мае",
    "june jun juni juin junio giugno junho июнь июня июне",
    "july jul juli juillet juil julio luglio julho июль июля июле",
    "august aug aout agosto augustus август августа августе",
    "september sept sep septembre septiembre setiembre settembre setembro сентябрь сентября сентябре",
    "october oct oktober okt octobre octubre ottobre outubro октябрь октября октябре",
    "november nov novembre noviembre novembro ноябрь ноября ноябре",
    "december dec dezember dez decembre diciembre dic dicembre dezembro декабрь декабря декабре",
)
# Also a verb, a planet, a name or a sea: with a day but no year they need a sign that the month is meant.
AMBIGUOUS: Final = frozenset({"may", "march", "mar", "mars", "marco"})
# Too short, or too often something else, to be a month where no day and no year stand beside it.
NEVER_ALONE: Final = frozenset(
    "jan janv feb fevr mar apr avr abr jun jul juil aug sep sept oct okt nov dec dez dic".split()
)
# Months in the one language only where these words stand before them: "on Mars" is another place, "di Marco" a person.
ALONE_ONLY_AFTER: Final = {
    "mars": frozenset({"en", "depuis", "au mois de", "avant", "apres"}),
    "marco": frozenset({"em", "desde", "ate"}),
}

WEEKDAYS: Final = {
    word: number - 1
    for word, number in _numbered(
        "monday montag lundi lunes lunedi segunda-feira maandag понедельник",
        "tuesday dienstag mardi martes martedi terca-feira dinsdag вторник",
        "wednesday mittwoch mercredi miercoles mercoledi quarta-feira woensdag среду",
        "thursday donnerstag jeudi jueves giovedi quinta-feira donderdag четверг",
        "friday freitag vendredi viernes venerdi sexta-feira vrijdag пятницу",
        "saturday samstag sonnabend samedi sabado sabato zaterdag субботу",
        "sunday sonntag dimanche domingo domenica zondag воскресенье",
    ).items()
}
EVERY: Final = frozenset(
    (
        "every",
        "each",
        "jeden",
        "chaque",
        "cada",
        "ogni",
        "elke",
        "iedere",
        "каждыи",
        "каждую",
        "каждое",
        "todo",
        "toda",
    )
)

# The first month of each; winter runs into the next year.
SEASONS: Final = {
    word: month
    for month, line in {
        3: "spring fruhling fruhjahr fruehling printemps primavera lente voorjaar весна весны веснои весну",
        6: "summer sommer ete verano estate verao zomer лето лета летом",
        9: "autumn fall herbst automne otono autunno outono herfst najaar осень осени осенью",
        12: "winter hiver invierno inverno зима зимы зимои зиму",
    }.items()
    for word in line.split()
}

# What stands before a month or a year that is meant as a time.
PREPOSITIONS: Final = (
    *("in", "on", "during", "since", "until", "till", "before", "after", "by", "from", "of", "for", "the year", "year"),
    *(
        "in the year",
        "around",
        "throughout",
        "between",
        "im",
        "am",
        "vom",
        "zum",
        "seit",
        "bis",
        "vor",
        "nach",
        "wahrend",
        "ab",
    ),
    *(
        "im jahr",
        "im jahre",
        "jahr",
        "en",
        "le",
        "au mois de",
        "au mois d'",
        "depuis",
        "jusqu'en",
        "avant",
        "apres",
        "pendant",
    ),
    *(
        "el",
        "en el ano",
        "desde",
        "hasta",
        "antes de",
        "durante",
        "il",
        "nel",
        "dal",
        "del",
        "a",
        "ad",
        "da",
        "fino a",
        "prima di",
    ),
    *(
        "em",
        "no ano de",
        "ate",
        "depois de",
        "op",
        "sinds",
        "tot",
        "tijdens",
        "voor",
        "na",
        "в",
        "во",
        "с",
        "до",
        "после",
        "за",
    ),
)
# A number before one of these counts things and is no year or day.
THINGS: Final = frozenset(
    (
        *(
            "steps",
            "people",
            "miles",
            "kilometers",
            "kilometres",
            "km",
            "meters",
            "metres",
            "feet",
            "dollars",
            "euros",
            "pounds",
            "bucks",
        ),
        *(
            "words",
            "tokens",
            "times",
            "pieces",
            "items",
            "pages",
            "points",
            "calories",
            "kcal",
            "grams",
            "kg",
            "bytes",
            "mb",
            "gb",
            "users",
        ),
        *(
            "hours",
            "minutes",
            "seconds",
            "days",
            "weeks",
            "months",
            "years",
            "percent",
            "degrees",
            "files",
            "lines",
            "books",
            "photos",
        ),
        *(
            "schritte",
            "leute",
            "personen",
            "meter",
            "euro",
            "worter",
            "stunden",
            "minuten",
            "tage",
            "wochen",
            "monate",
            "jahre",
            "mal",
        ),
        *(
            "personnes",
            "pas",
            "mots",
            "heures",
            "jours",
            "personas",
            "pasos",
            "horas",
            "dias",
            "persone",
            "passi",
            "ore",
            "giorni",
        ),
        *("pessoas", "passos", "mensen", "stappen", "uur", "dagen", "шагов", "человек", "рублеи", "часов", "днеи"),
    )
)

# (kind, how many before this one, how it is said)
RELATIVE: Final = (
    ("day", 2, r"(?:the )?day before yesterday|vorgestern|avant-hier|anteayer|antes de ayer"
     r"|l'altro ieri|anteontem|eergisteren|позавчера"),
    ("day", 1, r"yesterday|last night|gestern|hier soir|c'etait hier|ayer|anoche|ieri|ontem|gisteren|вчера"),
    ("day", 0, r"today|tonight|this (?:morning|afternoon|evening)|heute|aujourd'hui|hoy|oggi|hoje|vandaag|сегодня"),
    ("weekend", 1, r"last weekend|letztes wochenende|(?:le )?week-?end dernier|(?:el )?fin de semana pasado|(?:lo )?scorso weekend"
     r"|(?:no )?fim de semana passado|(?:vorig|afgelopen) weekend|в прошлые выходные"),
    ("week", 1, r"last week|past week|letzte[rn]? woche|vorige[rn]? woche|(?:la )?semaine derniere|(?:la )?semana pasada"
     r"|(?:la )?settimana scorsa|(?:la )?scorsa settimana|(?:a |na )?semana passada|(?:vorige|afgelopen) week|на прошлои неделе"),
    ("week", 0, r"this week|diese[r]? woche|cette semaine|esta semana|questa settimana|deze week|на этои неделе"),
    ("month", 1, r"last month|past month|letzte[nrms]? monat|vorige[nrms]? monat|(?:le )?mois dernier|(?:el )?mes pasado"
     r"|(?:il )?mese scorso"
     r"|(?:lo )?scorso mese|(?:o |no )?mes passado|(?:vorige|afgelopen) maand|в прошлом месяце"),
    ("month", 0, r"this month|diese[nrms]? monat|ce mois-ci|este mes|questo mese|deze maand|в этом месяце"),
    ("year", 1, r"last year|past year|letzte[ns]? jahr|vorige[ns]? jahr|(?:l')?annee derniere|(?:l')?an dernier|(?:el )?ano pasado"
     r"|(?:l')?anno scorso|(?:lo )?scorso anno|(?:o |no )?ano passado|(?:vorig|afgelopen) jaar|в прошлом году"),
    ("year", 0, r"this year|diese[ms] jahr|cette annee|este ano|quest'anno|dit jaar|в этом году"),
)  # fmt: skip
COUNTED: Final = (
    ("day", r"days?|tage?n?|jours?|dias?|giorn[oi]|dag(?:en)?|день|дня|днеи"),
    ("week", r"weeks?|wochen?|semaines?|semanas?|settiman[ae]|weken|неделю|недели|недель"),
    ("month", r"months?|monate?n?|mois|mes(?:es)?|mes[ei]|maand(?:en)?|месяца?|месяцев"),
    ("year", r"years?|jahre?n?|ans?|anos?|ann[oi]|jaar|года?|лет"),
)
NUMBERS: Final = {
    word: number
    for number, line in {
        1: "a one an ein einem einer un une una uno um uma een",
        2: "two couple zwei deux dos due dois duas twee два две",
        3: "three drei trois tres tre drie три",
        4: "four vier quatre cuatro quattro quatro четыре",
        5: "five funf cinq cinco cinque vijf пять",
        6: "six sechs seis sei zes шесть",
        7: "seven sieben sept siete sette sete zeven семь",
        8: "eight acht huit ocho otto oito восемь",
        9: "nine neun neuf nueve nove negen девять",
        10: "ten zehn dix diez dieci dez tien десять",
    }.items()
    for word in line.split()
}
