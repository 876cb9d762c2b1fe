"""Names that look like one another, though their characters differ: `аda` with a Cyrillic letter, and `ada`.

Characters that look alike are those of Unicode's confusables (UTS 39), as the library confusable_homoglyphs has them.
"""

import unicodedata
from functools import lru_cache
from typing import Any

# Of ASCII only these are alike in lower case; what looks like two letters ("rn") is left out.
_ALIKE = {"1": "l", "|": "l", "0": "o"}
_ASCII = str.maketrans(_ALIKE)
# Letters and marks that no font shows; of the category Cf all others.
_BLANK = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0}
_SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))


def look_of(name: str) -> str:
    """Return one spelling for all names that look like this one, in any case and width.

    >>> look_of("\\u0430d\\u0430") == look_of("Ada"), look_of("a\\u200dda") == look_of("ada"), look_of("Ada") == look_of("Eda")
    (True, True, False)
    """
    if name.isascii():
        return name.casefold().translate(_ASCII)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(_leader(sign) for sign in folded if not _is_hidden(sign))


def are_alike(name: str, other: str) -> bool:
    """Return whether people would take two names for one; in ASCII only case counts, since 1 and l are usual in names."""
    if name.isascii() and other.isascii():
        return name.casefold() == other.casefold()
    return look_of(name) == look_of(other)


def _is_hidden(sign: str) -> bool:
    code = ord(sign)
    is_selector = any(first <= code <= last for first, last in _SELECTORS)
    return is_selector or code in _BLANK or unicodedata.category(sign) == "Cf"


@lru_cache(maxsize=4096)
def _leader(sign: str) -> str:
    """Return the character that stands for all that look like this one."""
    if sign.isascii():
        return sign.translate(_ASCII)
    # 0.1 s and 10 MB, for names outside of ASCII alone.
    from confusable_homoglyphs.confusables import confusables_data

    table: dict[str, list[dict[str, Any]]] = confusables_data
    alike: set[str] = set()
    new = {sign}
    while new:
        alike |= new
        # In either case: a Cyrillic "н" is no "h", but its capital is an "H". From ASCII on, look-alikes add nothing.
        cased = {
            form for one in new if not one.isascii() for form in (one, one.lower(), one.upper())
        }
        found = cased | {near["c"] for one in cased for near in table.get(one, ())}
        new = {near for near in found - alike if len(near) == 1}
    leader = min(
        (near.casefold() for near in alike),
        key=lambda near: (not near.isascii(), not near.isalpha(), near),
    )
    return leader.translate(_ASCII)
