"""Hidden text is recognized by Unicode properties, and marked in every text that models get."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import product

import pytest

from ricordo.domain import hidden_text
from ricordo.domain.hidden_text import (
    UNSEEN_CLASS,
    UnseenRun,
    describe_hidden,
    has_hidden_text,
    hidden_runs,
    is_unseen,
    unseen_runs,
    with_marks,
    without_hidden_text,
    without_marks,
)
from ricordo.domain.message import (
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.domain.model import ModelRequest, ToolSchema

# The first and the last character of each kind. Each gives further test cases.
KINDS = {
    "tags": ("\U000e0001", "\U000e007f"),
    "embeddings and overrides": ("\u202a", "\u202e"),
    "isolates": ("\u2066", "\u2069"),
    "direction marks": ("\u200e", "\u200f"),
    "zero width": ("\u200b", "\u200d"),
    "invisible operators": ("\u2060", "\u2065"),
    "deprecated formats": ("\u206a", "\u206f"),
    "selectors": ("\ufe00", "\ufe0f"),
    "more selectors": ("\U000e0100", "\U000e01ef"),
    "Mongolian selectors": ("\u180b", "\u180f"),
    "Hangul fillers": ("\u115f", "\u1160"),
    "another filler": ("\u3164", "\u3164"),
    "a narrow filler": ("\uffa0", "\uffa0"),
    "soft hyphen": ("\u00ad", "\u00ad"),
    "annotations": ("\ufff9", "\ufffb"),
    "shorthand": ("\U0001bca0", "\U0001bca3"),
    "music": ("\U0001d173", "\U0001d17a"),
    "Khmer vowels": ("\u17b4", "\u17b5"),
    "grapheme joiner": ("\u034f", "\u034f"),
    "Arabic mark": ("\u061c", "\u061c"),
    "reserved": ("\ufff0", "\ufff8"),
    "noncharacters": ("\ufdd0", "\ufdef"),
    "last ones of a plane": ("\ufffe", "\uffff"),
    "unassigned": ("\u0378", "\u0379"),
    "controls": ("\x01", "\x08"),
    "high controls": ("\x80", "\x84"),
    "separators": ("\u2028", "\u2029"),
    "byte order mark": ("\ufeff", "\ufeff"),
}


def _samples(first: str, last: str) -> list[str]:
    codes = range(ord(first), ord(last) + 1)
    singles = [chr(code) for code in codes][:: max(1, len(codes) // 12)]
    return [*singles, "".join(map(chr, codes)), last * 3]


HIDDEN = [(kind, signs) for kind, (first, last) in KINDS.items() for signs in _samples(first, last)]
IN_PLACE = [
    *("👩‍💻", "👨‍👩‍👧", "❤️", "❤️‍🔥", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "☃︎", "🏳️‍🌈", "🧑🏽‍🚀", "🙂‍↔️", "🐦‍⬛", "🫨", "‼️", "ℹ️"),
    *("می‌خواهم", "ශ්‍රී", "ന്‍", "क्‍ष", "র‍্য", "葛󠄀", "ᠤ\u180bᠨ", "ភាសា\u200bខ្មែរ", "ไทย\u200bไทย"),
    *(
        "tab\tline\nform\ffeed",
        "a\u00a0b",
        "a\u202fb",
        "\u0600\u0661",
        "\ue000",
        "naïve Å",
        "한국어",
    ),
]
IN_RIGHT_TO_LEFT = ["שלום\u200f!", "C++\u200e היא שפה", "a \u061cعربي", "מחיר: 5\u200e %"]


def test_hidden_characters_of_every_kind_are_found_marked_and_removed() -> None:
    assert len(HIDDEN) > 60
    for (kind, signs), place in product(HIDDEN, ("a{}b", "{}", "a{}", "x {} y", "ö{}b", "7{}8")):
        text = place.format(signs)
        assert has_hidden_text(text), (kind, text)
        marked = with_marks(text)
        assert not has_hidden_text(marked), (kind, marked)
        assert "U+" in describe_hidden(text)
        clean = without_hidden_text(text)
        assert not any(map(is_unseen, clean)), (kind, clean)
        assert without_marks(marked).replace("\n", "") == clean.replace("\n", "")
        assert without_hidden_text(text, [f"so {text} so"]) == text
        assert not has_hidden_text(text, [f"so {text} so"])


@pytest.mark.parametrize("text", IN_PLACE)
def test_invisible_characters_with_a_meaning_stay(text: str) -> None:
    for place in (text, f"so {text} so", text * 2):
        assert unseen_runs(place) == []
        assert with_marks(place) == without_hidden_text(place) == place


@pytest.mark.parametrize("text", IN_RIGHT_TO_LEFT)
def test_direction_marks_in_right_to_left_text_are_not_hidden_text(text: str) -> None:
    assert hidden_runs(text) == []
    assert [run.is_hidden for run in unseen_runs(text)] == [False]
    assert hidden_runs(text.replace("\n", " ") + "\nplain\u200e"), (
        "a mark in a line without right-to-left letters is hidden text"
    )


def test_text_hidden_behind_a_meaningful_character_is_found() -> None:
    payload = "".join(chr(0xE0000 + ord(sign)) for sign in "obey me")
    hidden = [
        "🏴" + payload,
        "😀" + "\ufe0f" * 2,
        "👩\u200d",
        "😀\U000e0121\U000e0122",
        "क्\u200d\u200d",
    ]
    for text in [*hidden, "葛\U000e0100\U000e0101", "1\ufe0f", "a\ufe0f", "می\u200c\u200cخ"]:
        assert has_hidden_text(text), text
    assert unseen_runs(f"a{payload}")[0].tag_text == "obey me"


def test_the_regular_expression_class_matches_exactly_the_invisible_characters() -> None:
    pattern = re.compile(f"[{UNSEEN_CLASS}]")
    for code in (*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE1000)):
        sign = chr(code)
        if pattern.match(sign):
            assert is_unseen(sign), hex(code)
        elif unicodedata.category(sign) != "Cn":
            assert not is_unseen(sign), hex(code)


def test_a_megabyte_of_hidden_text_becomes_one_mark() -> None:
    assert len(with_marks("\U000e0041" * 1_000_000)) < 60
    assert len(hidden_runs("a\u200e" * 50_000)) == 50_000


def _message(role: str, *parts: Part) -> Message:
    return Message("message-1", "agent-1", "conversation-1", role, parts, 0)  # type: ignore[arg-type]


def test_no_hidden_text_reaches_a_model_unmarked() -> None:
    for _, signs in HIDDEN:
        text = f"see {signs} this"
        escaped = "".join(f"\\u{ord(sign):04x}" for sign in signs if " " <= sign <= "\uffff")
        request = ModelRequest(
            (
                _message("system", TextPart(text)),
                _message("user", TextPart(text)),
                _message(
                    "assistant",
                    ReasoningPart(text),
                    ToolCallPart("1", "note", f'{{"text": "so {escaped} so"}}'),
                ),
                _message("tool", ToolReturnPart("1", "note", "success", text)),
            ),
            tools=(ToolSchema("note", text, {"properties": {"text": {"description": text}}}),),
        )
        assert not has_hidden_text(repr_of(request)), signs


def repr_of(request: ModelRequest) -> str:
    texts = [
        getattr(part, "text", None) or getattr(part, "content", None) or part.arguments  # type: ignore[union-attr]
        for message in request.messages
        for part in message.parts
    ]
    tool = request.tools[0]
    return "\n".join(
        [*texts, tool.description, tool.parameters["properties"]["text"]["description"]]
    )


def test_texts_without_hidden_text_and_signed_parts_are_unchanged() -> None:
    messages = (
        _message("user", TextPart("plain 👩‍💻 می‌خواهم")),
        _message("assistant", TextPart("a\u200bb", "signed"), ReasoningPart("a\u200bb", "signed")),
    )
    assert ModelRequest(messages).messages is messages


def test_known_hidden_text_is_compared_in_its_context() -> None:
    """Compare with a plain search, for all short texts of a letter, a space and two characters."""
    signs = "a \u200b\u2060"
    texts = ["".join(one) for size in range(1, 5) for one in product(signs, repeat=size)]
    for text in texts:
        for known in texts[::7]:
            new = [run for run in hidden_runs(text) if not _occurs(text, run, known)]
            assert has_hidden_text(text, [known]) == bool(new), (text, known)
            assert bool(describe_hidden(text, [known])) == bool(new)
            assert not has_hidden_text(without_hidden_text(text, [known]), [known])


def _occurs(text: str, run: UnseenRun, known: str) -> bool:
    """Search the run with its neighbours; at an edge of the text, the known text may have more."""
    before = text[run.start - 1] if run.start else ""
    after = text[run.end : run.end + 1]
    starts = (index for index in range(len(known)) if known.startswith(run.text, index))
    for start in starts:
        left = known[start - 1] if start else ""
        end = start + len(run.text)
        right = known[end : end + 1]
        fits_left = left == before or not (before or is_unseen(left or " "))
        if fits_left and (right == after or not (after or is_unseen(right or " "))):
            return True
    return False


def test_comparing_hidden_text_takes_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known texts are read once, not once for each run of hidden text."""
    text = "".join(f"{chr(0x4E00 + number)}\u200b" for number in range(2000))
    read: list[int] = []
    sequences = hidden_text._unseen_sequences

    def counted(part: str) -> Iterator[tuple[int, int]]:
        read.append(len(part))
        return sequences(part)

    monkeypatch.setattr(hidden_text, "_unseen_sequences", counted)
    known = text[::-1]
    assert has_hidden_text(text, [known])
    assert read == [len(known), len(text)]
