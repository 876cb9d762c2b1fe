"""The parts of a long text. Each is indexed and embedded like a separate text of that length.

A short text is one part. A long text is cut into parts of about 150 English words, or 200 tokens.
Texts above 114,000 characters have longer parts, since there are at most 127. The cuts are at the
ends of paragraphs, sentences or words if there is such an end nearby. They depend only on the text,
so a part is found again by its number in the index.
"""

# The usual number of characters in a part. A text is cut if it is longer than one and a half times
# this number.
PART_CHARACTERS = 900
# The number of a part has seven bits in the index. An uncut text has the number 0.
MOST_PARTS = 127
# The most characters of a text that are indexed. There is a limit because a whole book in one
# message must not delay all other writes.
MOST_CHARACTERS = 200_000
UNCUT = 0
# Positions for a cut, the best first.
_ENDS = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", " ")


def parts_of(text: str) -> list[str]:
    """Return the parts of a text. Joined, they give the indexed beginning of the text.

    Args:
        text: A text of any length; only its first 200,000 characters are indexed.
    """
    text = text[:MOST_CHARACTERS]
    if 2 * len(text) <= 3 * PART_CHARACTERS:
        return [text]
    count = min(round(len(text) / PART_CHARACTERS), MOST_PARTS)
    size = len(text) / count
    cuts = [_cut_near(text, round(number * size), int(size / 4)) for number in range(1, count)]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def part_of_text(text: str, number: int) -> str | None:
    """Return the part with this number, counted from 1.

    Args:
        text: The whole text, as it is now.
        number: The number of the part from the index, counted from 1; 0 means an uncut text.

    Returns:
        The part without spaces around it; None for an uncut text, and for a part that the text no
        longer has.
    """
    if number == UNCUT:
        return None
    parts = parts_of(text)
    if number > len(parts):
        return None
    return parts[number - 1].strip()


def _cut_near(text: str, middle: int, reach: int) -> int:
    """Return the best position for a cut, at most `reach` characters from the middle."""
    for end in _ENDS:
        found = text.rfind(end, middle - reach, middle + reach)
        if found >= 0:
            return found + len(end)
    return middle
