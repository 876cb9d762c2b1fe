"""Letters of the world's scripts: how a word is folded to one spelling and cut to its stem.

Both depend on the word alone, never on the text around it: a question of one word must give the term that a whole
letter gave. What is a word, and which words a question is about, is told in `words.py`.
"""

import re
import unicodedata
from functools import lru_cache
from threading import Lock
from typing import Final

import Stemmer  # type: ignore[import-not-found, unused-ignore]

LATIN_STEMMER: Final = "english"  # for every word in Latin letters, whatever its language
TERM_LENGTH: Final = 64

# Scripts written without spaces, and Hangul, whose particles stick to words. Their digits and punctuation are left out.
SPACELESS: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u109f\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f\u1780-\u17d3"  # Burmese, Khmer
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\U0001aff0-\U0001b16f"  # kana
    "\u3105-\u312f\u31a0-\u31bf\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U000323af"  # Bopomofo, Han
)
# `\w` knows letters and digits only; vowel signs and other marks belong to their words too. Inside a character class.
MARKS: Final = (
    "".join(
        chr(code)
        for code in (*range(0x300, 0x3100), *range(0xA66F, 0xABF0), 0xFB1E, *range(0xFE20, 0xFE30))
        if unicodedata.category(chr(code)).startswith("M")
    )
    + "\U00010a01-\U00010a3f\U00011000-\U00011fff\U0001e8d0-\U0001e8d6\U0001e944-\U0001e94a"  # letters and marks alike
)
# Accents that Latin, Greek and Cyrillic letters wear; the marks of other scripts are in blocks of their own.
_ACCENTS = re.compile(r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
# In Cyrillic a breve makes another letter (й, ў), so only stress and diaeresis go.
_CYRILLIC_ACCENTS = re.compile(r"[\u0300\u0301\u0308]+")
_LETTERS: Final = str.maketrans(
    {
        **{"ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i", "ħ": "h", "ŋ": "n"},
        **{"ə": "e", "ɛ": "e", "ɔ": "o"},
        # Arabic: vowels and stretching are seldom written; Persian and Urdu type the same letters by other codes.
        **dict.fromkeys([*range(0x610, 0x61B), 0x640, *range(0x64B, 0x660), 0x670, *range(0x6D6, 0x6DD)]),
        **{"ی": "ي", "ى": "ي", "ک": "ك", "ۀ": "ه", "ہ": "ه"},
        # Hebrew points and accents, and the marks of abbreviations.
        **dict.fromkeys([*range(0x591, 0x5BE), 0x5BF, 0x5C1, 0x5C2, 0x5C4, 0x5C5, 0x5C7, 0x5F3, 0x5F4]),
        # Hindi is spelled with and without the dot below, and with either sign for a nasal vowel.
        **{"\u093c": None, "\u0901": "\u0902"},
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
# Plurals no English word has: their words are conflated whatever the language of the text is.
_FOREIGN_PLURAL: Final = re.compile(r"(?<=..)(?:(?<=ung|eit|aft)en|(?<=[sz]ion)en|(?<=in)nen|(?<=cion)es)$")
# PDFs, 1990s: the stemmer wants a vowel before it believes in a plural.
_SHORT_PLURAL: Final = re.compile(r"(?<=^[^aeiouy]{3})(?<!s)s$|(?<=^[0-9]{4})s$")
_PLURAL_LETTERS: Final = ("s", "n", "x")
_PLURAL_OF: Final = ((re.compile(r"(?<=...)coes$"), "cao"), (re.compile(r"(?<=..[mnv])aux$"), "al"))

_machines: dict[str, Stemmer.Stemmer] = {}
_machine_in_use = Lock()  # a stemmer is C with a buffer of its own, not for two threads at once


def fold(word: str) -> str:
    """One spelling for a word in NFKC: small letters, without accents, ASCII digits; "" if no letter or digit is in it."""
    if word.isascii():
        return word.lower()
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", word.casefold()))
    accents = _CYRILLIC_ACCENTS if any("\u0400" <= letter <= "\u052f" for letter in folded) else _ACCENTS
    folded = unicodedata.normalize("NFC", accents.sub("", folded).translate(_LETTERS))
    if any(letter.isdecimal() and letter > "9" for letter in folded):
        folded = "".join(str(unicodedata.decimal(letter, letter)) for letter in folded)
    return folded if any(letter.isalnum() for letter in folded) else ""


@lru_cache(100_000)
def stem(folded: str) -> str:
    """The term of a folded word: its stem by the stemmer of its script, at most `TERM_LENGTH` characters."""
    folded = folded[:TERM_LENGTH]
    algorithm = _algorithm(folded)
    if not algorithm:
        return folded
    if algorithm == LATIN_STEMMER and folded.endswith(_PLURAL_LETTERS):
        folded = _SHORT_PLURAL.sub("", _FOREIGN_PLURAL.sub("", folded))
        for plural, singular in _PLURAL_OF:
            folded = plural.sub(singular, folded)
    return stem_by(algorithm, folded)[:TERM_LENGTH] or folded


def stem_by(algorithm: str, folded: str) -> str:
    """The stem of a folded word by the Snowball algorithm of this name."""
    with _machine_in_use:
        machine = _machines.get(algorithm)
        if machine is None:
            machine = _machines[algorithm] = Stemmer.Stemmer(algorithm, 0)
        return str(machine.stemWord(folded))


def _algorithm(folded: str) -> str:
    if folded.isascii():
        return LATIN_STEMMER
    for letter in folded:
        if letter.isalpha():
            return next((algorithm for after, algorithm in _STEMMERS if letter < chr(after)), "")
    return ""
