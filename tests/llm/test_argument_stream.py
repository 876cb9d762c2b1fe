import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.llm.argument_stream import ArgumentStream, Rest, Words


def read(pieces: list[str], watched: tuple[str, ...] | None = None) -> tuple[dict[str, str], str]:
    """The words by key, and the rest, of arguments that come in these pieces."""
    stream, words, rest = ArgumentStream(watched), dict[str, str](), ""
    for piece in pieces:
        for found in stream.feed(piece):
            if isinstance(found, Words):
                words[found.key] = words.get(found.key, "") + found.text
            else:
                rest += found.text
    return words, rest


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def test_words_come_as_they_are_written() -> None:
    stream = ArgumentStream(("thinking", "message"))

    assert stream.feed('{"thin') == []
    assert stream.feed('king": "She li') == [Words("thinking", "She li")]
    assert stream.feed('kes tea.", "message": "T') == [Words("thinking", "kes tea."), Words("message", "T")]
    assert stream.feed('ea?", "request_heartbeat": tr') == [Words("message", "ea?"), Rest('{"request_heartbeat":tr')]
    assert stream.feed("ue}") == [Rest("ue}")]
    assert stream.feed(' {"message": "more"}') == []


def test_escapes_and_halves_of_characters_wait_until_they_are_whole() -> None:
    stream = ArgumentStream()
    stream.feed('{"a":"')

    told = [stream.feed(piece) for piece in ("\\", "n\\u00", "e9\\ud8", "3d", "\\", "u", "de0", "0!", '"}')]

    assert told == [
        [],
        [Words("a", "\n")],
        [Words("a", "é")],
        *([[]] * 4),
        [Words("a", "😀!")],
        [Rest("{}")],
    ]


def test_a_watched_key_that_holds_no_text_is_passed_on() -> None:
    assert read(['{"message": {"message": "x"}, "a": "b"}'], ("message",)) == (
        {},
        '{"message":{"message":"x"},"a":"b"}',
    )


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_keys = st.sampled_from(("message", "thinking", "a", "", 'quo"te', "ключ\n")) | st.text(max_size=6)
_object = st.dictionaries(_keys, st.text() | _json, max_size=5)
_cuts = st.lists(st.integers(0, 1000), max_size=12)


@given(_object, _cuts, st.booleans(), st.sampled_from((None, 1)), st.none() | st.just(("message", "thinking", "")))
def test_any_cut_of_any_object_gives_the_texts_that_it_holds(
    value: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None, watched: tuple[str, ...] | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    held = orjson.loads(text)

    words, rest = read(cut(text, cuts), watched)

    told = {key for key, item in held.items() if isinstance(item, str) and (watched is None or key in watched)}
    assert words == {key: held[key] for key in told if held[key]}
    assert orjson.loads(rest) == {key: item for key, item in held.items() if key not in told}


@given(_object, st.data())
def test_what_was_told_so_far_is_the_beginning_of_what_will_be(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    part = text[: data.draw(st.integers(0, len(text)))]

    words, rest = read([part])

    assert all(value[key].startswith(told) for key, told in words.items())
    assert read([text])[1].startswith(rest)


@given(_object, st.lists(st.tuples(st.integers(0, 1000), st.text(max_size=3)), max_size=3), _cuts)
def test_broken_json_never_raises_and_gives_the_same_however_it_is_cut(
    value: dict[str, Any], spoiled: list[tuple[int, str]], cuts: list[int]
) -> None:
    text = json.dumps(value)
    for place, junk in spoiled:
        at = place % (len(text) + 1)
        text = text[:at] + junk + text[at + 1 :]

    assert read(cut(text, cuts)) == read([text]) == read(list(text))


@given(st.text(), _cuts)
def test_any_text_at_all_is_read_without_an_error(text: str, cuts: list[int]) -> None:
    assert read(cut(text, cuts)) == read([text])


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "null",
        '"text"',
        "[{}]",
        '{"a" "b"}',
        '{"a":}',
        '{"a":,"b":"x"}',
        '{,"b":"x"}',
        '{"a":1,}',
        '{"a":[1},"b":"x"}',
        '{"a":1],"b":"x"}',
        '{"a":1;"b":"x"',
        '{"\\x":"a"}',
        '{a:"b"}',
        '{"a":["\n"],"b":"x"}',
    ],
)
def test_nothing_is_told_from_broken_json_on(broken: str) -> None:
    assert read([broken])[0] == {}


@pytest.mark.parametrize(
    "end", ["\\x", "\n", "\\ud83d!", "\\ud83d\\n", "\\ude00", "\\ude00\\ude00", "\\ud83d\\u0041", "\\u12g4"]
)
def test_a_string_that_breaks_is_told_up_to_there(end: str) -> None:
    assert read(['{"a":"good' + end + ' bad","b":"x"}'])[0] == {"a": "good"}
