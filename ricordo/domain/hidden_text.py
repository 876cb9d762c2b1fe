"""Hidden text: characters that are not shown, by their Unicode properties.

Formats, controls, fillers, selectors, tags and unassigned characters can carry text that models
read but people do not see. Some of them are useful in writing. They count as hidden only in other
positions:

- Joiners between letters of scripts that need them and within emoji, selectors behind emoji and
  ideographs, tags within flags, and zero-width spaces in scripts without spaces.
- Direction marks in lines with right-to-left letters. Pages show these as marks.

Every other invisible character is hidden text; pages and models get a mark instead. Agents may
write it only if the user did, and an approval removes it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from ricordo.domain.text import is_plain

# All assigned characters that are not shown (a test compares it with `is_unseen`), for character
# classes of regular expressions.
UNSEEN_CLASS = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00016fe4\U0001bca0-\U0001bca3"
    "\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_MARK_OPENS = "\u27e6"
_MARK_CLOSES = "\u27e7"
_MARK = re.compile(r"\u27e6U\+[0-9A-F]{4,6}(?: and \d+ more not shown)?\u27e7")
# Characters with Unicode's property White_Space: they move the text around them, so people notice
# them.
_SPACING_CONTROLS = frozenset("\t\n\v\f\r\x85")
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f")
# Bidirectional classes of format characters that have a glyph, such as the Arabic number sign.
_SHOWN_FORMATS = frozenset(("AN", "AL", "L"))
# Letters and marks without a glyph, recognized by parts of their Unicode names.
_BLANK_NAMES = ("FILLER", "GRAPHEME JOINER", "VARIATION SELECTOR", "VOWEL INHERENT")
# Symbols that fonts leave blank: an empty Braille cell, and a note without a head.
_BLANK_SYMBOLS = frozenset("\u2800\U0001d159")
# Unassigned characters that Unicode reserves for pictographs and ideographs, which newer fonts may
# show.
_RESERVED_PICTOGRAPHS = ("\U0001f000", "\U0001faff")
_RESERVED_IDEOGRAPHS = ("\U00020000", "\U0003fffd")
_SEPARATORS = ("\u2028", "\u2029")
_ZERO_WIDTH_SPACE = "\u200b"
_NON_JOINER = "\u200c"
_JOINER = "\u200d"
_GRAPHEME_JOINER = "\u034f"
_EMOJI_SELECTORS = frozenset("\ufe0e\ufe0f")
_KEYCAP = "\u20e3"
_KEYCAP_BASES = frozenset("#*0123456789")
# Emoji whose category is not a symbol.
_OTHER_EMOJI = frozenset("\u203c\u2049\u2139\u3030")
# A flag of a region: a black flag, the region's code in tags, and the tag that ends it.
_FLAG = re.compile("(?<=\U0001f3f4)[\U000e0030-\U000e0039\U000e0061-\U000e007a]{2,6}\U000e007f")
_TAGS = ("\U000e0020", "\U000e007e")
_TAG_OFFSET = 0xE0000
_UNSPACED_SCRIPTS = frozenset(("THAI", "LAO", "KHMER", "MYANMAR", "TAI", "NEW"))  # new Tai Lue
_MONGOLIAN = ("\u1800", "\u18af")
# All scripts with a virama are below this character. The range below it is searched once.
_LAST_VIRAMA = 0x12000
_VIRAMA_CLASS = 9
_LISTED_CHARACTERS = 4


@dataclass(frozen=True, slots=True)
class UnseenRun:
    """A run of characters that are not shown, with its position in a text.

    With `is_hidden` they are hidden text; otherwise they are direction marks in right-to-left text.
    """

    start: int
    end: int
    text: str
    is_hidden: bool = True

    @property
    def mark(self) -> str:
        """The name of its first character, and the number of the others."""
        name = f"U+{ord(self.text[0]):04X}"
        return f"{name} and {len(self.text) - 1} more not shown" if self.text[1:] else name

    @property
    def tag_text(self) -> str:
        """The ASCII text that its tag characters spell."""
        first, last = _TAGS
        return "".join(
            chr(ord(character) - _TAG_OFFSET)
            for character in self.text
            if first <= character <= last
        )


@lru_cache(maxsize=16_384)
def is_unseen(character: str) -> bool:
    r"""Return True if no font shows the character by itself.

    >>> is_unseen("\u200b"), is_unseen("\U000e0041"), is_unseen("\u3164"), is_unseen("\u00e9")
    (True, True, True, False)

    Args:
        character: One character of a text, of any kind.
    """
    match unicodedata.category(character):
        case "Cc":
            return character not in _SPACING_CONTROLS
        case "Cf":
            is_shown = unicodedata.bidirectional(character) in _SHOWN_FORMATS
            return not is_shown or character in _DIRECTION_MARKS
        case "Cn":
            return not _is_reserved(character)
        case "Cs" | "Zl" | "Zp":
            return True
        case "Lo" | "Mn":
            name = unicodedata.name(character, "")
            return any(word in name for word in _BLANK_NAMES)
        case _:
            return character in _BLANK_SYMBOLS


def unseen_runs(text: str) -> list[UnseenRun]:
    """Return the hidden text, and direction marks in right-to-left text, in their order.

    Args:
        text: Any text.
    """
    if is_plain(text):
        return []
    characters = frozenset(filter(is_unseen, set(text)))
    if not characters:
        return []
    lines = _Lines(text)
    flags = {position for flag in _FLAG.finditer(text) for position in range(*flag.span())}
    runs: list[UnseenRun] = []
    for match in _pattern(characters).finditer(text):
        start = match.start()
        kinds = [
            None if index in flags else _hides(text, index, lines) for index in range(*match.span())
        ]
        for is_hidden, group_start, group_end in _groups(kinds):
            begin, end = start + group_start, start + group_end
            if is_hidden is not None:
                runs.append(UnseenRun(begin, end, text[begin:end], is_hidden))
    return runs


def hidden_runs(text: str) -> list[UnseenRun]:
    """Return the hidden text of a text, in its order.

    Args:
        text: Any text.
    """
    return [run for run in unseen_runs(text) if run.is_hidden]


def has_hidden_text(text: str | None, known_texts: Iterable[str] = ()) -> bool:
    r"""Return True if the text holds hidden text that no known text has in the same context.

    >>> has_hidden_text("on\u200bce"), has_hidden_text("on\u200bce", ["only on\u200bce"])
    (True, False)

    Args:
        text: The new text; None has none.
        known_texts: Texts that may contain it, such as the text before a change.
    """
    runs = hidden_runs(text) if text else []
    return bool(runs and _new_runs(text or "", runs, _contexts_in(known_texts)))


def without_hidden_text(text: str, known_texts: Iterable[str] = ()) -> str:
    r"""Return the text without hidden text that no known text has in the same context.

    >>> without_hidden_text("on\u200bce"), without_hidden_text("\u2764\ufe0f") == "\u2764\ufe0f"
    ('once', True)

    Args:
        text: The new text.
        known_texts: Texts that may contain it, such as the text before a change.
    """
    runs = hidden_runs(text)
    if not runs:
        return text
    known_contexts = _contexts_in(known_texts)
    # Removing one character can turn its neighbour into hidden text.
    while runs := _new_runs(text, hidden_runs(text), known_contexts):
        text = _replaced(text, runs, _remains)
    return text


def with_marks(text: str) -> str:
    r"""Return the text for a model, with a mark in place of each hidden text.

    >>> with_marks("on\u200bce")
    'on⟦U+200B⟧ce'

    Args:
        text: A stored text. Its positions differ from those in the result.
    """
    runs = hidden_runs(text)
    if not runs:
        return text
    return _replaced(text, runs, lambda run: f"{_MARK_OPENS}{run.mark}{_MARK_CLOSES}")


def without_marks(text: str) -> str:
    """Return a text without the marks that its writer copied.

    Models and pages see hidden text as marks, which come back in the texts that they send.

    >>> without_marks("on⟦U+200B⟧ce")
    'once'

    Args:
        text: A text of a model, or of a form in a page.
    """
    return _MARK.sub("", text) if _MARK_OPENS in text else text


def describe_hidden(text: str, known_texts: Iterable[str] = ()) -> str:
    r"""Return the names of the text's hidden characters, with their number.

    >>> describe_hidden("a\u200b\u200b")
    '2 × U+200B'

    Args:
        text: The new text.
        known_texts: Texts whose hidden characters are not listed, if they are in the same context.
    """
    new_runs = _new_runs(text, hidden_runs(text), _contexts_in(known_texts))
    counts = Counter(character for run in new_runs for character in run.text)
    names = [
        f"{count} × U+{ord(character):04X}"
        for character, count in counts.most_common(_LISTED_CHARACTERS)
    ]
    rest = sum(counts.values()) - sum(count for _, count in counts.most_common(_LISTED_CHARACTERS))
    return ", ".join([*names, *([f"{rest} others"] if rest else [])])


@lru_cache(maxsize=256)
def _pattern(characters: frozenset[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(map(re.escape, sorted(characters)))}]+")


def _is_reserved(character: str) -> bool:
    """Return True if a later version of Unicode may show this unassigned character."""
    is_noncharacter = ord(character) & 0xFFFE == 0xFFFE
    return not is_noncharacter and any(
        first <= character <= last for first, last in (_RESERVED_PICTOGRAPHS, _RESERVED_IDEOGRAPHS)
    )


class _Lines:
    """The lines of a text, and whether they hold right-to-left letters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = -1
        self._is_right_to_left = False

    def is_right_to_left(self, index: int) -> bool:
        """Return whether the line at an index has right-to-left letters.

        Call it with rising indexes.
        """
        if index >= self._end:
            start = self._text.rfind("\n", 0, index) + 1
            end = self._text.find("\n", index)
            self._end = len(self._text) if end < 0 else end
            self._is_right_to_left = any(
                unicodedata.bidirectional(character) in ("R", "AL")
                and character not in _DIRECTION_MARKS
                for character in set(self._text[start : self._end])
            )
        return self._is_right_to_left


def _hides(text: str, index: int, lines: _Lines) -> bool | None:
    """Return True for hidden text, False for a direction mark in right-to-left text, or None.

    None means that the character is useful where it is.
    """
    character = text[index]
    before = text[index - 1] if index else ""
    after = text[index + 1 : index + 2]
    if character == _JOINER and before in _EMOJI_SELECTORS and index > 1:
        # An emoji and its selector count as one letter.
        return None if _is_emoji(text[index - 2]) and _is_emoji(after) else True
    if not before or is_unseen(before):
        return True
    if character in _DIRECTION_MARKS:
        return not lines.is_right_to_left(index)
    return None if _is_in_place(character, before, after) else True


def _is_in_place(character: str, before: str, after: str) -> bool:
    """Return True if a character is useful between its neighbours."""
    if character in _EMOJI_SELECTORS:
        return after == _KEYCAP if before in _KEYCAP_BASES else _is_emoji(before)
    if character in (_JOINER, _NON_JOINER):
        if character == _JOINER and _is_emoji(before):
            return _is_emoji(after)
        return _needs_joiners(before)
    if character == _ZERO_WIDTH_SPACE:
        return {_script(before), _script(after)} <= _UNSPACED_SCRIPTS
    if character == _GRAPHEME_JOINER:
        return all(sign and unicodedata.category(sign) == "Mn" for sign in (before, after))
    if _MONGOLIAN[0] <= character <= _MONGOLIAN[1]:
        return _MONGOLIAN[0] <= before <= _MONGOLIAN[1]
    return _is_selector_of(character, before)


def _is_selector_of(character: str, base: str) -> bool:
    """Return True if a variation selector can choose a form of the character before it."""
    if "VARIATION SELECTOR" not in unicodedata.name(character, ""):
        return False
    is_ideograph = "IDEOGRAPH" in unicodedata.name(base, "")
    if character >= "\U000e0100":
        return is_ideograph
    # Forms of ideographs, of mathematical symbols, and of letters such as those of Myanmar.
    is_other_form = unicodedata.category(base) == "Sm" or _needs_joiners(base)
    return character <= "\ufe02" and (is_ideograph or is_other_form)


def _is_emoji(character: str) -> bool:
    if not character or is_unseen(character):
        return False
    if character in _OTHER_EMOJI:
        return True
    # Skin tones are modifiers (Sk), and newer emoji are unassigned in this version of Python.
    is_symbol = unicodedata.category(character) in ("So", "Sm", "Cn")
    is_skin_tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    return not character.isascii() and (is_symbol or is_skin_tone)


def _needs_joiners(character: str) -> bool:
    """Return True for a letter or mark of a script that is joined or has a virama."""
    if unicodedata.category(character)[0] not in "LM":
        return False
    return (
        unicodedata.bidirectional(character) in ("R", "AL")
        or _MONGOLIAN[0] <= character <= _MONGOLIAN[1]
        or _script(character) in _scripts_with_virama()
    )


@lru_cache(maxsize=4096)
def _script(character: str) -> str:
    """Return the first word of the character's name; for a letter, it names the script."""
    return unicodedata.name(character, "").partition(" ")[0] if character else ""


@cache
def _scripts_with_virama() -> frozenset[str]:
    viramas = (
        chr(code)
        for code in range(0x300, _LAST_VIRAMA)
        if unicodedata.combining(chr(code)) == _VIRAMA_CLASS
    )
    return frozenset(map(_script, viramas))


def _groups(kinds: list[bool | None]) -> Iterator[tuple[bool | None, int, int]]:
    """Yield each run of equal kinds, with its start and end."""
    start = 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] is not kinds[start]:
            yield kinds[start], start, index
            start = index


def _remains(run: UnseenRun) -> str:
    """Return the text for removed characters: a line break for Unicode's line separators."""
    return "\n" if any(separator in run.text for separator in _SEPARATORS) else ""


def _new_runs(text: str, runs: list[UnseenRun], known_contexts: frozenset[str]) -> list[UnseenRun]:
    """Return the runs of a text that no known text has in the same context.

    Args:
        text: The text.
        runs: Its hidden runs, in their order.
        known_contexts: The result of `_contexts_in` for the known texts.
    """
    if not known_contexts:
        return runs
    new_runs: list[UnseenRun] = []
    sequences = _unseen_sequences(text)
    end = 0
    is_known = False
    for run in runs:
        while run.end > end:
            start, end = next(sequences)
            is_known = text[max(start - 1, 0) : end + 1] in known_contexts
        if not is_known:
            new_runs.append(run)
    return new_runs


def _contexts_in(known_texts: Iterable[str]) -> frozenset[str]:
    """Return the sequences of invisible characters in the texts, with their neighbours.

    Each occurs also without one or both neighbours, as at the start or the end of a text. A set
    makes the comparison linear; a search for each sequence would be quadratic.
    """
    contexts: set[str] = set()
    for text in known_texts:
        for start, end in _unseen_sequences(text):
            for first in {max(start - 1, 0), start}:
                contexts |= {text[first:end], text[first : end + 1]}
    return frozenset(contexts)


def _unseen_sequences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each sequence of characters that no font shows."""
    characters = frozenset() if is_plain(text) else frozenset(filter(is_unseen, set(text)))
    if characters:
        for match in _pattern(characters).finditer(text):
            yield match.span()


def _replaced(text: str, runs: Iterable[UnseenRun], replacement: Callable[[UnseenRun], str]) -> str:
    pieces: list[str] = []
    end = 0
    for run in runs:
        pieces += (text[end : run.start], replacement(run))
        end = run.end
    return "".join((*pieces, text[end:]))
