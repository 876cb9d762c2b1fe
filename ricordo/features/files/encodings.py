"""The encoding of a text without a mark that is no UTF-8: the library names those it may be, and the least odd reading is taken.

Short texts fit many encodings. So of each reading is counted what people hardly write: signs inside words, capitals behind small
letters, half-width katakana, rare ideographs. The file says which encoding was taken, and whether others fit nearly as well.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

# In the order in which they are taken where nothing else decides.
_CANDIDATES = (
    *("cp1252", "gb18030", "cp932", "big5", "cp949", "euc_jp", "cp1251", "koi8_r", "koi8_u"),
    *("iso8859_2", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
)
_LOOKED_AT = 16 * 1024  # bytes
_NEAR = 0.05
# Bytes of the ideographs and syllables that people use: the first plane of each national standard.
_COMMON = {
    "gb18030": ("gb2312", 0xB0, 0xD7),
    "big5": ("big5", 0xA4, 0xC6),
    "cp932": ("cp932", 0x88, 0x97),
    "euc_jp": ("euc_jp", 0xB0, 0xCF),
    "cp949": ("cp949", 0xB0, 0xC8),
}
# The letters that are most of a text in the languages of an encoding.
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
    """The encoding that a text is read with, by its name in Python; unsure where another fits nearly as well."""

    name: str
    is_unsure: bool = False


def wide_encoding(data: bytes) -> str | None:
    """Return UTF-16 or UTF-32 without a mark, known by where its zeros are; also of texts in other scripts, by their spaces."""
    some = data[:8192]
    if len(some) < 4 or len(data) % 2:
        return None
    if len(data) % 4 == 0:
        for name, places in (("utf-32-le", (2, 3)), ("utf-32-be", (0, 1))):
            if all(not any(some[place::4]) for place in places) and any(some):
                return name
    even, odd = some[0::2].count(0), some[1::2].count(0)
    half = len(some) // 2
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        # Line ends, digits and spaces have a zero in every script; other texts have hardly any.
        if zeros > others and zeros * 50 >= half and others * 100 <= half and _decodes(data, name):
            return name
    return None


def _decodes(data: bytes, name: str) -> bool:
    try:
        text = data.decode(name)
    except UnicodeDecodeError:
        return False
    odd = sum(
        unicodedata.category(sign) in ("Cn", "Co", "Cc") and sign not in "\r\n\t"
        for sign in text[:4096]
    )
    return odd * 50 <= len(text[:4096])


def guess(data: bytes) -> GuessedEncoding:
    """Return how this text is read best; Windows-1252 where nothing fits."""
    some = data[:_LOOKED_AT]
    if len(some) < len(data):
        some = some[: some.rfind(b"\n") + 1] or some
    readings = sorted(
        (oddity, _CANDIDATES.index(name), name, text) for oddity, name, text in _readings(some)
    )
    if not readings:
        return GuessedEncoding("cp1252", is_unsure=True)
    oddity, _, name, text = readings[0]
    others = [each for each, _, _, other in readings[1:] if other != text]
    return GuessedEncoding(name, is_unsure=bool(others) and others[0] - oddity < _NEAR)


def _readings(data: bytes) -> Iterator[tuple[float, str, str]]:
    from charset_normalizer import from_bytes  # 20 ms, which a server's start does not wait for

    likely = {
        match.encoding: match.coherence
        for match in from_bytes(data, cp_isolation=list(_CANDIDATES))
    }
    for name in _CANDIDATES:
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        # The library knows the letters of many languages; where it knows this one, that counts for the reading.
        known = likely.get(name)
        yield _oddity(text, name) + (0.1 if known is None else -min(known, 0.5) / 10), name, text


def _oddity(text: str, name: str) -> float:
    """Return how much of the text people hardly write, as a share of its letters that are not ASCII."""
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
        odd += sum(one.islower() and other.isupper() for one, other in pairwise(word))
        odd += len({_script(sign) for sign in word}) - 1
    return odd / len(foreign)


def _weight(sign: str, name: str) -> float:
    number, category = ord(sign), unicodedata.category(sign)
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
    return 0.1 if name == "gb18030" and 0x3040 <= number <= 0x30FF else 0.0


def _script(sign: str) -> str:
    return unicodedata.name(sign, "?").partition(" ")[0]
