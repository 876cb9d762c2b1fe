"""What a text is found by: its terms, the same for the index and for questions, and the same on every database.

Words are folded and stemmed (`scripts.py`). Scripts without spaces give overlapping pairs of characters. What is written
together gives its parts and the whole without joiners: `foo_bar`, `foo-bar` and `fooBar` give foo, bar and foobar;
`user@example.com` gives user, example, com and userexamplecom; `GPT-4` gives gpt, 4 and gpt4. `don't` is dont, `Caroline's`
caroline, `l'eau` eau. A number keeps its points and loses its thousands' commas: 3.14, 1.2.3 (of `v1.2.3` too), 1000000.
Slashes and colons separate. An emoji is a term, `C++` and `C#` are.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from ricordo.search.scripts import MARKS, SPACELESS, fold, stem, stem_by
from ricordo.search.word_lists import ENDINGS, STOP_WORDS

QUERY_TERMS: Final = 64
_KEPT_WORDS: Final = 50_000
_KEPT_QUESTION_WORDS: Final = 10_000
_KEPT_LENGTH: Final = 40  # longer words come once: they would only fill the cache
_QUESTION_LENGTH: Final = 20_000  # characters of a question that are read

# Soft hyphens, joiners, direction and variation marks: invisible, and inside words.
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u200c-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]+")
_APOSTROPHE = re.compile("[\u2018\u2019\u02bc\u201b]")
_SPACELESS = re.compile(f"([{SPACELESS}]+)")
_SYMBOL = "[\u231a\u231b\u23e9-\u23f3\u2600-\u27bf\u2b1b\u2b1c\u2b50\u2b55\U0001f300-\U0001f3fa\U0001f400-\U0001faff]"
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
    r"^(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu|quelqu|dell|nell|all|dall|sull|dagl|un|quell|quest|gl|sant|bell|com|dov|cos)'"
    r"(?=\w\w|[^\W\d]$)",
    re.IGNORECASE,
)
# A point between digits is part of a number.
_JOINT = re.compile(r"[_@'&-]+|\.(?![0-9])|(?<![0-9])\.")
_CASE_CHANGE = re.compile(r"(?<=[a-zß-öø-ÿ])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACRONYMS = re.compile(r"[A-Z]{2,}s")
_VERSION = re.compile(r"v([0-9]+\..*)")

_LANGUAGES_OF: Final[dict[str, list[str]]] = {}  # in the order of their lists: the first of equals is taken
for _code, _stop_words in STOP_WORDS.items():
    for _stop_word in _stop_words:
        _LANGUAGES_OF.setdefault(_stop_word, []).append(_code)
# Of so few words two that look foreign may be what is asked for: "dog" and "men" are Danish for though and but.
_FEW_WORDS: Final = 6
# English words that are more often meant than not when they are written like a name.
_ALSO_NAMES: Final = frozenset({"will", "may"})
_INFIX_LENGTH: Final = 5
_LETTERS_ONLY = re.compile(rf"(?:[^\W\d_]|[{MARKS}])+")
# What German, Dutch and the Romance languages add to a word; cut from it before it is looked for inside others.
_INFLECTION = re.compile(r"(?<=.....)(?:en|er|es|em|e|n|s|a|o|i)$")
# More words near in meaning to one than these blur what is asked.
MOST_RELATED = 3
_QUESTION_MARKS = ("?", "？", "؟", "⁇", "⁈", "՞", "፧")
_AFTER_QUESTION = " \t\r\n\"')]}»”’*_!"


def terms(text: str) -> list[str]:
    """The terms a text is found by, in order, repeats and stop words kept; each has 1 to 64 characters, no space or control."""
    if text.isascii():
        return _terms_of(_ASCII_WORD.findall(text))
    found: list[str] = []
    for piece, is_spaceless in _stretches(text):
        found += (
            _pairs(piece) if is_spaceless else _terms_of((_ASCII_WORD if piece.isascii() else _WORD).findall(piece))
        )
    return found


def query_terms(text: str) -> list[str]:
    """The distinct terms of a question in order, without the stop words of its language unless nothing else is left; at most 64."""
    words = _question(text)
    plain = [piece for _, pieces in words for piece in pieces]
    stop = STOP_WORDS[_language(plain, needed=3 if len(words) < _FEW_WORDS else 2)]
    shouted = text.isupper()
    kept: dict[str, None] = {}
    for position, (word, pieces) in enumerate(words):
        meant = not shouted and _is_meant(word, position)
        kept.update((stem(piece), None) for piece in pieces if meant or piece not in stop)
        if len(kept) >= QUERY_TERMS:
            break
    return list(kept or dict.fromkeys(map(stem, plain)))[:QUERY_TERMS]


def other_forms(text: str) -> list[str]:
    """Terms of other forms of a question's words, where its language is one that the default stemmer does not know; at most 64."""
    words = [piece for _, pieces in _question(text) for piece in pieces]
    language = _language(words)
    if language not in ENDINGS:
        return []
    algorithm, endings = ENDINGS[language]
    forms: dict[str, None] = {}
    for word in dict.fromkeys(words):
        if len(word) < 4 or not word.isascii() or not word.isalpha() or word in STOP_WORDS[language]:
            continue
        root = stem_by(algorithm, word)
        if len(root) >= 3:
            forms.update((stem(root + ending), None) for ending in endings)
            forms.pop(stem(word), None)
        if len(forms) >= QUERY_TERMS:
            break
    return list(forms)[:QUERY_TERMS]


def language_of(text: str) -> str:
    """The language a question is in, by its stop words: an ISO 639-1 code, `en` where nothing tells."""
    return _language([piece for _, pieces in _question(text) for piece in pieces])


def infix(term: str) -> str | None:
    """What to look for inside other terms, as part of a compound, when nothing holds this one; None where that makes no sense."""
    if len(term) == 1:
        return term if _SPACELESS.fullmatch(term) else None
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


def _terms_of(words: list[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        found += _stems(word) if len(word) <= _KEPT_LENGTH else map(stem, _pieces(word))
    return found


@lru_cache(_KEPT_WORDS)
def _stems(word: str) -> tuple[str, ...]:
    return tuple(map(stem, _pieces(word)))


@lru_cache(_KEPT_QUESTION_WORDS)
def _folded(word: str) -> tuple[str, ...]:
    return tuple(_pieces(word))


def _question(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Each word of a question as written, with the folded words it is made of."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for piece, is_spaceless in _stretches(text[:_QUESTION_LENGTH]):
        if is_spaceless:
            found += [(pair, (pair,)) for pair in _pairs(piece)]
        else:
            words = (_ASCII_WORD if piece.isascii() else _WORD).findall(piece)
            found += [(word, _folded(word)) for word in words]
    return found


def _pieces(word: str) -> list[str]:
    """The folded words that one written word is made of, then the whole of them if there are several."""
    if word.isascii() and word.isalnum() and (word.islower() or word.istitle() or word.isdecimal()):
        return [word.lower()]
    if _SIGN.fullmatch(word):
        return [word.lower()]
    if "," in word:
        return [word.replace(",", "")]
    if "'" in word:
        word = _NOT.sub("nt", _ELISION.sub("", _ENGLISH_ENDING.sub("", word)))
    parts: list[str] = []
    for run in _JOINT.split(word):
        parts += [run[:-1]] if _ACRONYMS.fullmatch(run) else _CASE_CHANGE.split(run)
    folded = [plain for part in parts if (plain := fold(part))]
    if len(folded) > 1:
        folded = folded[1:] if folded[0] == "www" else folded
        folded.append("".join(folded) if len(folded) > 1 else folded.pop())
    elif folded and "." in folded[0]:
        folded = _number(folded[0])
    return folded


def _number(text: str) -> list[str]:
    """A number with points, without the v of a version; a date such as 7.5.2023 is found by its year too."""
    version = _VERSION.fullmatch(text)
    number = version[1] if version else text
    return [number, *(part for part in number.split(".")[2:] if len(part) == 4)]


def _language(words: Iterable[str], needed: int = 2) -> str:
    """The language whose stop words most of these words are; fewer than `needed` in Latin letters make no text foreign yet."""
    known = dict.fromkeys(word for word in words if word in _LANGUAGES_OF)
    matches = Counter(language for word in known for language in _LANGUAGES_OF[word])
    best = max(matches, key=lambda language: (matches[language], language == "en"), default="en")
    return best if matches[best] >= needed or not all(map(str.isascii, known)) else "en"


def _is_meant(word: str, position: int) -> bool:
    """Whether a word that looks like a stop word is written as a name: US, IT, WHO, or Will inside a sentence."""
    is_acronym = len(word) > 1 and word.isascii() and word.isupper()
    return is_acronym or (position > 0 and word.istitle() and word.lower() in _ALSO_NAMES)


def is_question(text: str) -> bool:
    """Whether a text ends with a question, in any script."""
    return text.rstrip(_AFTER_QUESTION).endswith(_QUESTION_MARKS)


def related_terms(related: Mapping[str, Sequence[str]], words: Sequence[str]) -> list[str]:
    """Terms for words near in meaning to those asked for, a few for each of `words` that they are given for."""
    found: dict[str, None] = {}
    for word, nearest in related.items():
        if terms(word)[:1] != terms(word) or not set(terms(word)) <= set(words):
            continue
        others = (near for other in nearest for near in terms(other)[:1])
        new = [near for near in dict.fromkeys(others) if near not in words]
        found |= dict.fromkeys(new[:MOST_RELATED])
    return list(found)
