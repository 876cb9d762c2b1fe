"""The normal form of text and names.

The tests check its changes, its exceptions, and that a second pass changes nothing.
"""

import unicodedata
from itertools import product

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.text import (
    MOST_LEVELS,
    encoded_json,
    is_normal_name,
    name_key,
    normal_json,
    normal_name,
    normal_text,
    spans_of,
    storable_json,
)

WORDS = [
    "Grüße",
    "Zoë",
    "Ångström",
    "señor",
    "Čeština",
    "Tiếng Việt",
    "한국어",
    "Ёлка",
    "ガ",
    "Ἀθῆναι",
    "naïve",
]
# Text whose hidden characters carry meaning: emoji of several parts, flags, Persian, Sinhala,
# Malayalam, variants of Chinese.
MEANINGFUL = ["👩‍💻", "👨‍👩‍👧", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "می‌خواهم", "ශ්‍රී", "ന്‍", "葛󠄀", "🇮🇹", "1️⃣"]


@pytest.mark.parametrize("word", WORDS)
def test_every_spelling_of_a_word_has_the_same_normal_form(word: str) -> None:
    forms = [unicodedata.normalize(form, word) for form in ("NFC", "NFD")]
    ends = ["\n", "\r\n", "\r"]
    marks = ["", "\ufeff"]
    texts = {
        normal_text(f"{mark}{form}{end}{form}{end}")
        for form, end, mark in product(forms, ends, marks)
    }
    assert texts == {f"{unicodedata.normalize('NFC', word)}\n" * 2}
    hidden = ["\u200b", "\u00ad", "\u200e", "\u202e", "\u2060", "\ufeff", "\u2066", "\U000e0041"]
    names = {
        normal_name(f"{sign}{form[0]}{sign}{form[1:]}{sign}")
        for form, sign in product(forms, hidden)
    }
    assert names == {unicodedata.normalize("NFC", word)}


@pytest.mark.parametrize("text", MEANINGFUL)
def test_hidden_characters_with_a_meaning_stay(text: str) -> None:
    plain = unicodedata.normalize("NFC", text)
    assert normal_text(text) == plain
    # A name keeps a joiner between letters that need it, not at its end.
    assert normal_name(text) == plain.rstrip("\u200d")
    assert is_normal_name(normal_name(text))


def test_a_text_keeps_hidden_characters_that_a_name_loses() -> None:
    for sign in ("\u200b", "\u200e", "\u202e", "\u2060", "\u00ad", "\u200d"):
        assert normal_text(f"a{sign}b") == f"a{sign}b"
        assert normal_name(f"a{sign}b") == "ab"
    for text in ("a\tb", "a\u2028b", "a\x0bb", "ﬁ", "²", "\u00a0", "Å" * 3, "  blanks  "):
        assert normal_text(text) == unicodedata.normalize("NFC", text)


@given(
    st.text(
        st.one_of(
            st.characters(), st.sampled_from("\r\n\ufeff\u200c\u200d\u200b\u0301\u0323aé👩❤\ufe0f")
        )
    )
)
def test_normalizing_twice_changes_nothing_more(text: str) -> None:
    for normal in (normal_text, normal_name):
        once = normal(text)
        assert normal(once) == once
        assert unicodedata.is_normalized("NFC", once)
        assert not {"\r", "\ufeff"} & set(once)
    assert normal_name(normal_text(text)) == normal_name(text)


def test_indistinguishable_names_have_one_key() -> None:
    assert (
        len(
            {
                name_key(name)
                for name in ("Grüße", "GRU\u0308SSE", "grüsse", "Grü\u200bße", "\u202eGrüße")
            }
        )
        == 1
    )
    assert name_key("ada") != name_key("adá")


def test_many_combining_marks_on_one_letter_are_kept() -> None:
    text = "a" + "\u0301\u0323" * 400
    assert sorted(unicodedata.normalize("NFD", normal_text(text))) == sorted(
        unicodedata.normalize("NFD", text)
    )


def test_json_is_normalized_except_for_code_and_secrets() -> None:
    odd = "e\u0301\r\n"
    sent = {
        "name": "a\u200be\u0301",
        "tags": ["\ufefft"],
        "value": odd,
        "source_code": odd,
        "secrets": {"KEY": odd},
        "metadata": {"e\u0301": [odd, 1, None, {"signature": odd}]},
    }
    assert normal_json(sent) == {
        "name": "aé",
        "tags": ["t"],
        "value": "é\n",
        "source_code": odd,
        "secrets": {"KEY": odd},
        "metadata": {"é": ["é\n", 1, None, {"signature": odd}]},
    }


@given(
    st.lists(
        st.sampled_from([*WORDS, *MEANINGFUL, "কো", "q\u0323\u0301", "\ufeff", "\r\n", "\r", " a"])
    ),
    st.data(),
)
def test_a_substring_is_found_in_any_unicode_form(parts: list[str], data: st.DataObject) -> None:
    forms = [data.draw(st.sampled_from(["NFC", "NFD"])) for _ in parts]
    given_parts = [
        unicodedata.normalize(form, part) for form, part in zip(forms, parts, strict=True)
    ]  # type: ignore[arg-type]
    text = "|".join(given_parts)
    for piece in filter(normal_text, parts):
        edited = text
        spans = spans_of(text, unicodedata.normalize("NFD", piece))
        for start, end in reversed(spans):
            assert normal_text(text[start:end]) == normal_text(piece)
            edited = f"{edited[:start]}#{edited[end:]}"
        assert len(spans) >= parts.count(piece) > 0
        assert normal_text(edited) == normal_text(text).replace(normal_text(piece), "#")


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(1 << 60, 1 << 2_000) | ANY_TEXT,
    lambda member: st.lists(member) | st.dictionaries(ANY_TEXT, member),
    max_leaves=20,
)


@given(ANY_JSON)
def test_a_sanitized_json_value_can_be_stored(value: object) -> None:
    stored = storable_json(value)
    assert "\\u0000" not in orjson.dumps(stored).decode().replace("\\\\", "")
    assert storable_json(stored) == stored


@given(st.recursive(st.integers(-9, 9) | st.text("a\ud7ffé\n👍"), st.lists, max_leaves=9))
def test_a_storable_json_value_is_unchanged(value: object) -> None:
    assert storable_json(value) == value


@given(st.integers(1, 900), st.lists(st.booleans(), min_size=1, max_size=5))
def test_only_levels_beyond_the_limit_are_cut(depth: int, kinds: list[bool]) -> None:
    value: object = 7
    for level in range(depth):
        value = [value] if kinds[level % len(kinds)] else {"a": value}
    if depth <= MOST_LEVELS:
        assert storable_json(value) == value
        assert orjson.loads(encoded_json(value)) == value
        return
    with pytest.raises(TypeError):
        encoded_json(value)
    text = encoded_json(storable_json(value)).decode()
    assert text.count("[") + text.count("{") == MOST_LEVELS
