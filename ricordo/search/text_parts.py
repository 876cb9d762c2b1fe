"""The parts of a long text, each indexed and embedded like a text of its length.

A short text is one part. A long one is cut into parts of about 150 English words, or 200 tokens, at
the ends of paragraphs, sentences or words. The cuts depend on the text alone, so the number of a
part in the index finds its text again.
"""

# Characters of a part. A text is cut from one and a half times as many on.
PART_CHARACTERS = 900
# The number of a part takes seven bits in the index; 0 is the number of an uncut text.
MOST_PARTS = 127
# Only this part of a text is indexed, since a whole book in one message must not delay all other
# writes.
MOST_CHARACTERS = 200_000
UNCUT = 0
# Where a text is cut, the best first.
_ENDS = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", " ")


def parts_of(text: str) -> list[str]:
    """Return the parts of a text, which joined are its indexed beginning."""
    text = text[:MOST_CHARACTERS]
    if 2 * len(text) <= 3 * PART_CHARACTERS:
        return [text]
    count = min(round(len(text) / PART_CHARACTERS), MOST_PARTS)
    size = len(text) / count
    cuts = [_cut_near(text, round(number * size), int(size / 4)) for number in range(1, count)]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def part_of_text(text: str, number: int) -> str | None:
    """Return the part with this number, counted from 1.

    None for an uncut text, and for a part that the text no longer has.
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
