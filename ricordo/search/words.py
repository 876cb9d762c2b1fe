"""The terms of a text. They are the same in the index, in queries and on both databases.

Words are folded to one spelling and stemmed. A term depends only on its word, so that a query of
one word gives the same term as a long text. Scripts without spaces give overlapping pairs of
characters. A compound gives its parts, and the whole without joiners: `foo_bar`, `foo-bar` and
`fooBar` give foo, bar and foobar; `user@example.com` gives user, example, com and userexamplecom;
`GPT-4` gives gpt, 4 and gpt4. `don't` is dont, `Caroline's` caroline, `l'eau` eau. A number keeps
its points and loses the commas of thousands: 3.14, 1.2.3 (also from `v1.2.3`), 1000000. Slashes and
colons separate words. An emoji is a term, and so are `C++` and `C#`.
"""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from threading import Lock
from typing import Any, Final

import Stemmer  # type: ignore[import-not-found, unused-ignore]


def load_words(name: str) -> dict[str, Any]:
    """Read a TOML file of `data/`, e.g. the stop words by language.

    Args:
        name: The name of the file, without its ending.
    """
    return tomllib.loads(
        files("ricordo.search").joinpath("data", f"{name}.toml").read_text("utf-8")
    )


_LISTS = load_words("stop_words")
STOP_WORDS: Final = {
    language: frozenset(word_list.split()) for language, word_list in _LISTS["words"].items()
}
# The stemming algorithm of a language, and the endings that may follow a word's root.
ENDINGS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    language: (table["algorithm"], ("", *table["endings"].split()))
    for language, table in _LISTS["endings"].items()
}
# Pronouns of the first and of the second person, by language.
_ASKER_WORDS, _ASKED_WORDS = (
    {language: frozenset(word_list.split()) for language, word_list in _LISTS[person].items()}
    for person in ("asker", "asked")
)
LATIN_STEMMER: Final = "english"  # for every word in Latin letters, of any language
# Phrases that ask for an earlier answer, and words that ask for a summary, by language.
_ANSWERED, _SUMMARY = (
    {language: frozenset(words.split()) for language, words in _LISTS[name].items()}
    for name in ("answered", "summary")
)
TERM_LENGTH: Final = 64

# Scripts without spaces, and Hangul, in which particles are attached to words. Digits and
# punctuation are left out.
SPACELESS: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u109f\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"  # Burmese
    "\u1780-\u17d3"  # Khmer
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\U0001aff0-\U0001b16f"  # kana
    "\u3105-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"  # Han
    "\uf900-\ufaff\U00020000-\U000323af"  # Han
)
# For a character class: `\w` matches only letters and digits, but vowel signs and other marks
# belong to words too.
MARKS: Final = (
    "".join(
        chr(code)
        for code in (*range(0x300, 0x3100), *range(0xA66F, 0xABF0), 0xFB1E, *range(0xFE20, 0xFE30))
        if unicodedata.category(chr(code)).startswith("M")
    )
    # Blocks of letters and marks.
    + "\U00010a01-\U00010a3f\U00011000-\U00011fff\U0001e8d0-\U0001e8d6\U0001e944-\U0001e94a"
)
# Accents of Latin, Greek and Cyrillic letters. The marks of other scripts are in other blocks.
_ACCENTS = re.compile(
    r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
# In Cyrillic a breve makes another letter (й, ў), so only stress marks and diaeresis are removed.
_CYRILLIC_ACCENTS = re.compile(r"[\u0300\u0301\u0308]+")
_LETTERS: Final = str.maketrans(
    {
        "ø": "o",
        "æ": "ae",
        "œ": "oe",
        "ł": "l",
        "đ": "d",
        "ð": "d",
        "þ": "th",
        "ı": "i",
        "ħ": "h",
        "ŋ": "n",
        "ə": "e",
        "ɛ": "e",
        "ɔ": "o",
        # Arabic: vowels and stretching are seldom written. Persian and Urdu use other codes for the
        # same letters.
        **dict.fromkeys(
            [*range(0x610, 0x61B), 0x640, *range(0x64B, 0x660), 0x670, *range(0x6D6, 0x6DD)]
        ),
        "ی": "ي",
        "ى": "ي",
        "ک": "ك",
        "ۀ": "ه",
        "ہ": "ه",
        # Hebrew points and accents, and the marks of abbreviations.
        **dict.fromkeys(
            [*range(0x591, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7, 0x5F3, 0x5F4]
        ),
        # Hindi is written with and without the dot below, and with two signs for a nasal vowel.
        "\u093c": None,
        "\u0901": "\u0902",
    }
)
# The first code after each script, and the stemmer of its words; "" leaves them whole.
_STEMMERS: Final = (
    (0x250, LATIN_STEMMER),
    (0x370, ""),
    (0x400, "greek"),
    (0x530, "russian"),
    (0x590, "armenian"),
    (0x600, ""),
    (0x700, "arabic"),
    (0x900, ""),
    (0x980, "hindi"),
    (0xB80, ""),
    (0xC00, "tamil"),
    (0x1E00, ""),
    (0x1F00, LATIN_STEMMER),
    (0x2000, "greek"),
)
# Plural endings that no English word has. They are removed in texts of any language.
_FOREIGN_PLURAL: Final = re.compile(
    r"(?<=..)(?:(?<=ung|eit|aft)en|(?<=[sz]ion)en|(?<=in)nen|(?<=cion)es)$"
)
# Plurals such as PDFs and 1990s, since the stemmer removes a plural s only after a vowel.
_SHORT_PLURAL: Final = re.compile(r"(?<=^[^aeiouy]{3})(?<!s)s$|(?<=^[0-9]{4})s$")
_PLURAL_LETTERS: Final = ("s", "n", "x")
_PLURAL_OF: Final = ((re.compile(r"(?<=...)coes$"), "cao"), (re.compile(r"(?<=..[mnv])aux$"), "al"))

_machines: dict[str, Stemmer.Stemmer] = {}
# a stemmer is C code with one buffer, so only one thread may use it at a time
_machine_in_use = Lock()

QUERY_TERMS: Final = 64
_CACHED_WORDS: Final = 50_000
_CACHED_QUESTION_WORDS: Final = 10_000
_MAX_CACHED_LENGTH: Final = 40  # longer words hardly recur, and would only fill the cache
QUESTION_LENGTH: Final = 20_000  # characters of a question that are read

# Soft hyphens, joiners, direction and variation marks, which are invisible inside words.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]+"
)
_APOSTROPHE = re.compile("[\u2018\u2019\u02bc\u201b]")
_SPACELESS = re.compile(f"([{SPACELESS}]+)")
_SYMBOL = (
    "[\u231a\u231b\u23e9-\u23f3\u2600-\u27bf\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f300-\U0001f3fa\U0001f400-\U0001faff]"
)
_NUMBER = r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?!\w)"
_ASCII_WORD = re.compile(rf"{_NUMBER}|[A-Za-z](?:\+\+|\#)(?!\w)|\w+(?:[.@'&-]\w+)*", re.ASCII)
_WORD = re.compile(
    rf"{_NUMBER}|[A-Za-z](?:\+\+|\#)(?!\w)|[\w{MARKS}]+(?:[.@'&-][\w{MARKS}]+)*"
    rf"|[\U0001f1e6-\U0001f1ff]{{2}}|{_SYMBOL}"
)
_SIGN = re.compile(rf"[A-Za-z](?:\+\+|\#)|[\U0001f1e6-\U0001f1ff]{{2}}|{_SYMBOL}")

_ENGLISH_ENDING = re.compile(r"'(?:s|ll|re|ve|d|m)$", re.IGNORECASE)
_NOT = re.compile(r"n't$", re.IGNORECASE)
_ELISION = re.compile(
    r"^(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu|quelqu|dell|nell|all|dall|sull|dagl|un|quell"
    r"|quest|gl|sant|bell|com|dov|cos)'"
    r"(?=\w\w|[^\W\d]$)",
    re.IGNORECASE,
)
# A point between digits is part of a number.
_JOINT = re.compile(r"[_@'&-]+|\.(?![0-9])|(?<![0-9])\.")
_CASE_CHANGE = re.compile(r"(?<=[a-zß-öø-ÿ])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACRONYMS = re.compile(r"[A-Z]{2,}s")
_VERSION = re.compile(r"v([0-9]+\..*)")

# Languages by stop word, in the order of their lists. Of equally likely languages English is
# chosen, or else the one whose first stop word comes first in the query.
_LANGUAGES_OF: Final[dict[str, list[str]]] = {}
for _code, _stop_words in STOP_WORDS.items():
    for _stop_word in _stop_words:
        _LANGUAGES_OF.setdefault(_stop_word, []).append(_code)
# A query of fewer words needs three stop words of another language. Two may be ordinary words of
# the query: for example, "dog" and "men" are also the Danish words for "though" and "but".
_FEW_WORDS: Final = 6
# Stop words that are usually names if they are written with a capital.
_ALSO_NAMES: Final = frozenset({"will", "may"})
_INFIX_LENGTH: Final = 5
_LETTERS_ONLY = re.compile(rf"(?:[^\W\d_]|[{MARKS}])+")
# Endings of German, Dutch and the Romance languages. They are cut off before a word is looked for
# inside others.
_INFLECTION = re.compile(r"(?<=.....)(?:en|er|es|em|e|n|s|a|o|i)$")
# More related words for a word would make the query too vague.
MOST_RELATED = 3
_QUESTION_MARKS = ("?", "？", "؟", "⁇", "⁈", "՞", "፧")
_AFTER_QUESTION = " \t\r\n\"')]}»”’*_!"


def terms(text: str) -> list[str]:
    """Return the terms of a text in order, with repeats and stop words.

    Each has 1 to 64 characters, and no spaces or control characters.

    Args:
        text: A text of any length and language.
    """
    if text.isascii():
        return _terms_of(_ASCII_WORD.findall(text))
    text_terms: list[str] = []
    for piece, is_spaceless in _stretches(text):
        if is_spaceless:
            text_terms += _pairs(piece)
        else:
            text_terms += _terms_of(_words_of(piece))
    return text_terms


def query_terms(text: str) -> list[str]:
    """Return the distinct terms of a query in order, at most 64.

    Stop words of the query's language are left out, if there are other words.

    Args:
        text: The query, of which the first `QUESTION_LENGTH` characters count.
    """
    query_words = _question(text)
    all_pieces = [piece for _, pieces in query_words for piece in pieces]
    needed = 3 if len(query_words) < _FEW_WORDS else 2
    stop_words = STOP_WORDS[_language(all_pieces, needed)]
    is_shouted = text.isupper()
    text_terms: dict[str, None] = {}
    for position, (word, pieces) in enumerate(query_words):
        is_meant = not is_shouted and _is_meant(word, position)
        text_terms.update(
            (stem(piece), None) for piece in pieces if is_meant or piece not in stop_words
        )
        if len(text_terms) >= QUERY_TERMS:
            break
    return list(text_terms or dict.fromkeys(map(stem, all_pieces)))[:QUERY_TERMS]


def other_forms(text: str) -> list[str]:
    """Return the terms of other forms of a query's words, at most 64.

    They help in languages for which the usual stemmer is not made.

    Args:
        text: The query, of which the first `QUESTION_LENGTH` characters count.
    """
    query_words = [piece for _, pieces in _question(text) for piece in pieces]
    language = _language(query_words)
    if language not in ENDINGS:
        return []
    algorithm, endings = ENDINGS[language]
    forms: dict[str, None] = {}
    for word in dict.fromkeys(query_words):
        is_plain = word.isascii() and word.isalpha()
        if len(word) < 4 or not is_plain or word in STOP_WORDS[language]:
            continue
        root = stem_by(algorithm, word)
        if len(root) >= 3:
            forms.update((stem(root + ending), None) for ending in endings)
            forms.pop(stem(word), None)
        if len(forms) >= QUERY_TERMS:
            break
    return list(forms)[:QUERY_TERMS]


def persons(text: str) -> tuple[bool, bool]:
    """Return whether a query is about the asker, and whether it is about an earlier answer.

    "Where do I work?" is about the asker alone, and "What did you recommend me?" is about both.
    "Can you tell me where I work?" is about the asker alone, since it does not ask for an earlier
    answer.

    Args:
        text: The query.
    """
    pieces = [piece for _, pieces in _question(text) for piece in pieces]
    language = _language(pieces)
    speaks_of_asker, speaks_of_asked = (
        not question_words.get(language, frozenset()).isdisjoint(pieces)
        or any(pronoun in text for pronoun in question_words["spaceless"])
        for question_words in (_ASKER_WORDS, _ASKED_WORDS)
    )
    if language in _ANSWERED:
        pairs = {f"{first}_{second}" for first, second in pairwise(pieces)}
        speaks_of_asked = not _ANSWERED[language].isdisjoint(pairs.union(pieces))
    return speaks_of_asker, speaks_of_asked


def asks_for_summary(text: str) -> bool:
    """Return whether a query asks for a summary, for example of a year.

    Args:
        text: The query, of which the first `QUESTION_LENGTH` characters count.
    """
    pieces = [piece for _, pieces in _question(text) for piece in pieces]
    return not _SUMMARY.get(_language(pieces), frozenset()).isdisjoint(pieces)


def language_of(text: str) -> str:
    """Return the code (ISO 639-1) of the language of a query's stop words, else `en`.

    Args:
        text: The query, of which the first `QUESTION_LENGTH` characters count.
    """
    return _language([piece for _, pieces in _question(text) for piece in pieces])


def infix(term: str) -> str | None:
    """Return the text to look for inside other terms if no document has this term.

    In this way a search finds compounds. Returns None for a term that is too short, or that does
    not consist of letters only.

    Args:
        term: A term of a query.
    """
    if len(term) == 1:
        if _SPACELESS.fullmatch(term):
            return term
        return None
    if len(term) < _INFIX_LENGTH or not _LETTERS_ONLY.fullmatch(term) or _SPACELESS.search(term):
        return None
    return _INFLECTION.sub("", term)


def _stretches(text: str) -> Iterator[tuple[str, bool]]:
    if not text.isascii():
        text = _APOSTROPHE.sub("'", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)))
    if text.isascii():
        yield text, False
        return
    for number, piece in enumerate(_SPACELESS.split(text)):
        if piece:
            yield piece, number % 2 == 1


def _pairs(run: str) -> list[str]:
    return [first + second for first, second in pairwise(run)] or [run]


def _words_of(text: str) -> list[str]:
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def _terms_of(words: list[str]) -> list[str]:
    word_terms: list[str] = []
    for word in words:
        if len(word) <= _MAX_CACHED_LENGTH:
            word_terms += _stems(word)
        else:
            word_terms += map(stem, _pieces(word))
    return word_terms


@lru_cache(_CACHED_WORDS)
def _stems(word: str) -> tuple[str, ...]:
    return tuple(map(stem, _pieces(word)))


@lru_cache(_CACHED_QUESTION_WORDS)
def _folded(word: str) -> tuple[str, ...]:
    return tuple(_pieces(word))


def _question(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return each written word of a query, with its folded parts."""
    query_words: list[tuple[str, tuple[str, ...]]] = []
    for piece, is_spaceless in _stretches(text[:QUESTION_LENGTH]):
        if is_spaceless:
            query_words += [(pair, (pair,)) for pair in _pairs(piece)]
        else:
            query_words += [(word, _folded(word)) for word in _words_of(piece)]
    return query_words


def _parts(word: str) -> list[str]:
    """Split the word at its joints and changes of case."""
    parts: list[str] = []
    for run in _JOINT.split(word):
        if _ACRONYMS.fullmatch(run):
            parts.append(run[:-1])
        else:
            parts += _CASE_CHANGE.split(run)
    return parts


def _pieces(word: str) -> list[str]:
    """Return the folded parts of a written word; if there are several, also the whole."""
    # Most words need no splitting.
    is_in_one_case = word.islower() or word.istitle() or word.isdecimal()
    if (word.isascii() and word.isalnum() and is_in_one_case) or _SIGN.fullmatch(word):
        return [word.lower()]
    if "," in word:
        return [word.replace(",", "")]
    if "'" in word:
        word = _NOT.sub("nt", _ELISION.sub("", _ENGLISH_ENDING.sub("", word)))
    folded = [plain for part in _parts(word) if (plain := fold(part))]
    if len(folded) > 1:
        folded = folded[1:] if folded[0] == "www" else folded
        folded.append("".join(folded) if len(folded) > 1 else folded.pop())
    elif folded and "." in folded[0]:
        folded = _number(folded[0])
    return folded


def _number(text: str) -> list[str]:
    """Return a number with its points, but without the v of a version.

    A date such as 7.5.2023 also gives its year.
    """
    version = _VERSION.fullmatch(text)
    number = version[1] if version else text
    return [number, *(part for part in number.split(".")[2:] if len(part) == 4)]


def _language(words: Iterable[str], needed: int = 2) -> str:
    """Return the language that has the most stop words among these words, else `en`.

    If all stop words are ASCII, a language other than English needs at least `needed` of them.
    """
    stop_words = dict.fromkeys(word for word in words if word in _LANGUAGES_OF)
    matches = Counter(language for word in stop_words for language in _LANGUAGES_OF[word])
    best = max(matches, key=lambda language: (matches[language], language == "en"), default="en")
    if matches[best] >= needed or not all(map(str.isascii, stop_words)):
        return best
    return "en"


def _is_meant(word: str, position: int) -> bool:
    """Return True if a word is meant although it is spelled like a stop word.

    It is an acronym such as US or IT, or a name such as Will that is not the query's first word.
    """
    is_acronym = len(word) > 1 and word.isascii() and word.isupper()
    return is_acronym or (position > 0 and word.istitle() and word.lower() in _ALSO_NAMES)


def is_question(text: str) -> bool:
    """Return True if the text ends with a question mark of any script.

    Args:
        text: A text; closing quotes and brackets after the mark do not count.
    """
    return text.rstrip(_AFTER_QUESTION).endswith(_QUESTION_MARKS)


def related_terms(
    related: Mapping[str, Sequence[str]], words: Sequence[str]
) -> dict[str, list[str]]:
    """Return the terms of related words, at most a few for each of the query's `words`.

    Args:
        related: The words that are near in meaning, the nearest first, by each word of the query.
        words: The query's terms.
    """
    related_words: dict[str, list[str]] = {}
    for word, nearest in related.items():
        word_terms = terms(word)
        if len(word_terms) > 1 or not set(word_terms) <= set(words):
            continue
        near_terms = dict.fromkeys(term for other in nearest for term in terms(other)[:1])
        new = [term for term in near_terms if term not in words]
        if word_terms and new:
            related_words[word_terms[0]] = new[:MOST_RELATED]
    return related_words


def fold(word: str) -> str:
    """Return one spelling of a word: lower case, without accents, with ASCII digits.

    Args:
        word: One word, without joiners. If it is not ASCII and has no letter and no digit, the
            result is "".
    """
    if word.isascii():
        return word.lower()
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", word.casefold()))
    is_cyrillic = any("\u0400" <= letter <= "\u052f" for letter in folded)
    accents = _CYRILLIC_ACCENTS if is_cyrillic else _ACCENTS
    folded = unicodedata.normalize("NFC", accents.sub("", folded).translate(_LETTERS))
    if any(letter.isdecimal() and letter > "9" for letter in folded):
        folded = "".join(str(unicodedata.decimal(letter, letter)) for letter in folded)
    if any(letter.isalnum() for letter in folded):
        return folded
    return ""


@lru_cache(100_000)
def stem(folded: str) -> str:
    """Return the term of a folded word: the stem by its script's stemmer.

    A term has at most `TERM_LENGTH` characters.

    Args:
        folded: A word as `fold` returned it.
    """
    folded = folded[:TERM_LENGTH]
    algorithm = LATIN_STEMMER if folded.isascii() else _algorithm(folded)
    if not algorithm:
        return folded
    if algorithm == LATIN_STEMMER and folded.endswith(_PLURAL_LETTERS):
        folded = _SHORT_PLURAL.sub("", _FOREIGN_PLURAL.sub("", folded))
        for plural, singular in _PLURAL_OF:
            folded = plural.sub(singular, folded)
    return stem_by(algorithm, folded)[:TERM_LENGTH] or folded


def stem_by(algorithm: str, folded: str) -> str:
    """Return the stem of a folded word by the Snowball algorithm of this name.

    Args:
        algorithm: The name of a Snowball algorithm, such as "english".
        folded: The word, as `fold` returns it.
    """
    with _machine_in_use:
        machine = _machines.get(algorithm)
        if machine is None:
            machine = _machines[algorithm] = Stemmer.Stemmer(algorithm, 0)
        return str(machine.stemWord(folded))


def _algorithm(folded: str) -> str:
    for letter in folded:
        if letter.isalpha():
            return next((algorithm for after, algorithm in _STEMMERS if letter < chr(after)), "")
    return ""
