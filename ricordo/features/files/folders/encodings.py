"""Guess the encoding of a text that has no byte order mark and is not UTF-8.

Short texts fit many encodings. So the text is decoded by each candidate, and the oddities of each
result are counted. Oddities are things that people hardly write: signs inside words, capitals after
small letters, half-width katakana, rare ideographs. `charset_normalizer` improves the score of
encodings in which it recognizes a language. The encoding with the best score is chosen. The guess
is unsure if others fit nearly as well.
"""

import codecs
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

# In the order of preference among readings with equal scores.
_CANDIDATES = (
    *("cp1252", "gb18030", "cp932", "big5", "cp949", "euc_jp", "cp1251", "koi8_r", "koi8_u"),
    *("iso8859_2", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
)
_SAMPLE_BYTES = 16 * 1024
# The guess is unsure if another reading's score differs by less than this from the best.
_NEAR = 0.05
# Lead bytes of the common ideographs, which are the first level of each national standard. For
# Korean they are the lead bytes of the syllables.
_COMMON = {
    "gb18030": ("gb2312", 0xB0, 0xD7),
    "big5": ("big5", 0xA4, 0xC6),
    "cp932": ("cp932", 0x88, 0x97),
    "euc_jp": ("euc_jp", 0xB0, 0xCF),
    "cp949": ("cp949", 0xB0, 0xC8),
}
# The most frequent letters in the languages of an encoding.
_CYRILLIC = "оеаинтсрвлкОЕАИНТСРВЛК"
_FREQUENT = {
    "gb18030": "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主年动同工也能下过子说名学王李张",
    "big5": "的一是在不了有和人這中大為上個國我以要他時來用們生到作地於出就分對成會可主年動同工也能下過子說名學王李張",
    "cp932": "のにはをたがでてとしれさあいるかなりンスルトイラー",
    "euc_jp": "のにはをたがでてとしれさあいるかなりンスルトイラー",
    "cp949": "이다는을의에가고하지로은한도를기자사리어시부서나",
    "cp1251": _CYRILLIC,
    "koi8_r": _CYRILLIC,
    "koi8_u": _CYRILLIC,
    "cp1252": "äöüßéèàçêñáíóúåøæÄÖÜÉÅØ–“”’„€",
    "iso8859_2": "ąćęłńóśźżěščřžýáíéőűŁŻĄ",
    "cp1250": "ąćęłńóśźżěščřžýáíéőűŁŻĄ–“”’„€",
    "cp1253": "αοιετσνηυράίόήέ",
    "cp1254": "ışğİçöüŞÖÜÇ",
    "cp1255": "יוהלאמרבתשםן",
    "cp1256": "اليمونرتبةد",
}
_WORD = re.compile(r"[^\W\d_]+")
_INSIDE = re.compile(r"(?<=[^\W\d_])[^\w\s'’.\-/&@+:,;()\"](?=[^\W\d_])")


@dataclass(frozen=True, slots=True)
class GuessedEncoding:
    """The Python name of the encoding of a text.

    `is_unsure` is set if another encoding fits nearly as well.
    """

    name: str
    is_unsure: bool = False


def wide_encoding(content: bytes) -> str | None:
    """Recognize UTF-16 or UTF-32 without a byte order mark by the positions of zero bytes.

    UTF-16 in scripts other than Latin is recognized by spaces, digits and line ends.
    """
    sample = content[:8192]
    if len(sample) < 4 or len(content) % 2:
        return None
    if len(content) % 4 == 0:
        for name, offsets in (("utf-32-le", (2, 3)), ("utf-32-be", (0, 1))):
            if all(not any(sample[offset::4]) for offset in offsets) and any(sample):
                return name
    even = sample[0::2].count(0)
    odd = sample[1::2].count(0)
    half = len(sample) // 2
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        # In UTF-16 the high byte is zero for Latin letters, and in every script for line ends,
        # digits and spaces. The low byte is hardly ever zero.
        if (
            zeros > others
            and zeros * 50 >= half
            and others * 100 <= half
            and _decodes(content, name)
        ):
            return name
    return None


def _decodes(content: bytes, name: str) -> bool:
    try:
        text = content.decode(name)
    except UnicodeDecodeError:
        return False
    odd_count = sum(
        unicodedata.category(sign) in ("Cn", "Co", "Cc") and sign not in "\r\n\t"
        for sign in text[:4096]
    )
    return odd_count * 50 <= len(text[:4096])


def guess(content: bytes) -> GuessedEncoding:
    """Return the most plausible encoding of this text, or Windows-1252 if none fits."""
    sample = content[:_SAMPLE_BYTES]
    if len(sample) < len(content):
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    is_cut = len(sample) < len(content)
    readings = sorted(
        (oddity, _CANDIDATES.index(name), name, text)
        for oddity, name, text in _readings(sample, is_cut=is_cut)
    )
    if not readings:
        return GuessedEncoding("cp1252", is_unsure=True)
    oddity, _, name, text = readings[0]
    others = [score for score, _, _, other in readings[1:] if other != text]
    return GuessedEncoding(name, is_unsure=bool(others) and others[0] - oddity < _NEAR)


def _readings(content: bytes, *, is_cut: bool) -> Iterator[tuple[float, str, str]]:
    """Yield the score, the encoding and the text of each possible reading.

    With `is_cut`, the content may end within a character, which is then left out.
    """
    texts: dict[str, str] = {}
    names: dict[int, list[str]] = {}
    for name in _CANDIDATES:
        decoder = codecs.getincrementaldecoder(name)()
        try:
            texts[name] = decoder.decode(content, final=not is_cut)
        except UnicodeDecodeError:
            continue
        rest, _ = decoder.getstate()
        names.setdefault(len(content) - len(rest), []).append(name)
    likely: dict[str, float] = {}
    for length, names_of_length in names.items():
        likely |= _coherence(content[:length], names_of_length)
    for name, text in texts.items():
        # The library knows the letters of many languages. If it recognizes a language, the encoding
        # gets a better score.
        coherence = likely.get(name)
        if coherence is None:
            adjustment = 0.1
        else:
            adjustment = -min(coherence, 0.5) / 10
        yield _oddity(text, name) + adjustment, name, text


def _coherence(content: bytes, names: list[str]) -> dict[str, float]:
    """Return how well a language is recognized in each of these encodings, if one is."""
    # This import takes 20 ms, so it is not done at a server's start.
    from charset_normalizer import from_bytes

    return {match.encoding: match.coherence for match in from_bytes(content, cp_isolation=names)}


def _oddity(text: str, name: str) -> float:
    """Score the oddities of a text, per letter that is not ASCII.

    An oddity is something that people hardly write.
    """
    foreign = [sign for sign in text if ord(sign) > 127]
    if not foreign:
        return 0.0
    usual = _FREQUENT.get(name, "")
    odd = sum(_weight(sign, name) for sign in foreign) - 0.3 * sum(
        sign in usual for sign in foreign
    )
    odd += 2.0 * len(_INSIDE.findall(text))
    for word in _WORD.findall(text):
        if word.isascii():
            continue
        odd += sum(first.islower() and second.isupper() for first, second in pairwise(word))
        odd += len({_script(sign) for sign in word}) - 1
    return odd / len(foreign)


def _weight(sign: str, name: str) -> float:
    number = ord(sign)
    category = unicodedata.category(sign)
    if category in ("Cc", "Co", "Cn", "Cs"):
        return 3.0
    if (
        0xFF61 <= number <= 0xFF9F or 0x2500 <= number <= 0x25FF
    ):  # half-width katakana; lines and blocks
        return 1.0
    if name in _COMMON and (
        0x3400 <= number <= 0x9FFF or 0xAC00 <= number <= 0xD7A3 or 0xF900 <= number <= 0xFAFF
    ):
        codec, first, last = _COMMON[name]
        try:
            lead = sign.encode(codec)[0]
        except UnicodeEncodeError:
            return 1.0
        return 0.0 if first <= lead <= last else 0.6
    if category in ("Sk", "Sm", "So") or sign in "ªº":
        return 0.5
    if name == "gb18030" and 0x3040 <= number <= 0x30FF:
        return 0.1
    return 0.0


def _script(sign: str) -> str:
    return unicodedata.name(sign, "?").partition(" ")[0]
