"""Names that look alike although their characters differ.

For example `аda` with a Cyrillic letter, and `ada`. The pairs are Unicode's confusables (UTS 39),
from the library confusable_homoglyphs.
"""

import unicodedata
from functools import lru_cache
from typing import Any

from ricordo.domain.hidden_text import is_unseen

# In ASCII only these look alike in lower case; pairs of letters that look like one letter ("rn")
# are left out.
_ALIKE = {"1": "l", "|": "l", "0": "o"}
_ASCII = str.maketrans(_ALIKE)


def look_of(name: str) -> str:
    r"""Return one spelling for all names that look like this one; case and width do not count.

    >>> look_of("\u0430d\u0430") == look_of("Ada"), look_of("a\u200dda") == look_of("ada")
    (True, True)
    >>> look_of("Ada") == look_of("Eda")
    False
    """
    if name.isascii():
        return name.casefold().translate(_ASCII)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(_leader(sign) for sign in folded if not is_unseen(sign))


def are_alike(name: str, other: str) -> bool:
    """Return True if people would take two names for one.

    If both names are ASCII, only their case is ignored, since 1 and l are both usual in names.
    """
    if name.isascii() and other.isascii():
        return name.casefold() == other.casefold()
    return look_of(name) == look_of(other)


@lru_cache(maxsize=4096)
def _leader(sign: str) -> str:
    """Return the one character that represents all that look like this one."""
    if sign.isascii():
        return sign.translate(_ASCII)
    # Imported late: it takes 0.1 s and 10 MB, and only names outside of ASCII need it.
    from confusable_homoglyphs.confusables import confusables_data

    table: dict[str, list[dict[str, Any]]] = confusables_data
    alike: set[str] = set()
    new_signs = {sign}
    while new_signs:
        alike |= new_signs
        # Compare in both cases: a Cyrillic "н" is no "h", but its capital looks like an "H".
        # Look-alikes of ASCII characters add nothing.
        outside_ascii = [sign for sign in new_signs if not sign.isascii()]
        cased = {form for sign in outside_ascii for form in (sign, sign.lower(), sign.upper())}
        confusable = cased | {entry["c"] for sign in cased for entry in table.get(sign, ())}
        new_signs = {sign for sign in confusable - alike if len(sign) == 1}
    leader = min(
        (near.casefold() for near in alike),
        key=lambda near: (not near.isascii(), not near.isalpha(), near),
    )
    return leader.translate(_ASCII)
