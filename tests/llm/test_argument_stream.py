import json
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from ricordo.llm.argument_stream import ArgumentStream
from tests.seams.growth import require_linear


def read(pieces: list[str], key: str = "message") -> tuple[str, str]:
    stream = ArgumentStream(key)
    found = [stream.feed(piece) for piece in pieces]
    return "".join(text for text, _ in found), "".join(others for _, others in found)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def test_the_text_argument_is_streamed_as_text_and_the_others_as_json() -> None:
    stream = ArgumentStream("thinking")
    pieces = (
        '{"thin',
        'king": "She li',
        'kes tea.", "message": "T',
        'ea?", "request_heartbeat": tr',
        "ue}",
        ' {"a": 1}',
    )
    assert [stream.feed(piece) for piece in pieces] == [
        ("", ""),
        ("She li", ""),
        ("kes tea.", '{"message":"T'),
        ("", "ea?"),
        ("", '","request_heartbeat":true}'),
        ("", ""),
    ]


def test_incomplete_escapes_and_surrogate_pairs_wait_until_they_are_complete() -> None:
    stream = ArgumentStream("a")
    pieces = ('{"a":"', "\\", "n\\u00", "e9\\ud8", "3d", "\\", "u", "de0", "0!", '"}')
    texts = ["", "", "\n", "é", "", "", "", "", "😀!", ""]
    assert [stream.feed(piece) for piece in pieces] == [
        *((text, "") for text in texts[:-1]),
        ("", "{}"),
    ]


def test_a_text_argument_that_is_no_text_stays_in_the_json() -> None:
    assert read(['{"message": {"message": "x"}, "a": "b"}']) == (
        "",
        '{"message":{"message":"x"},"a":"b"}',
    )


def test_long_arguments_in_small_pieces_are_read_in_linear_time() -> None:
    def work(lines: int) -> None:
        value = {"message": 'She said: "}{" \\ ' * lines, "code": "f() { }\n" * lines}
        text = json.dumps(value)
        message, others = read([text[at : at + 4] for at in range(0, len(text), 4)])
        assert (message, orjson.loads(others)) == (value["message"], {"code": value["code"]})

    require_linear(work, 250)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_keys = st.sampled_from(("message", "thinking", "a", "", 'quo"te', "ключ\n")) | st.text(max_size=6)
_object = st.dictionaries(_keys, st.text() | _json, max_size=5)
_cuts = st.lists(st.integers(0, 1000), max_size=12)


@given(_object, _cuts, st.booleans(), st.sampled_from((None, 1)))
def test_any_object_cut_anywhere_is_read_completely(
    value: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    held = orjson.loads(text)
    wanted = held.pop("message") if isinstance(held.get("message"), str) else ""

    message, others = read(cut(text, cuts))

    assert (message, orjson.loads(others)) == (wanted, held)
    for end in cuts:
        part = read([text[: end % (len(text) + 1)]])
        assert message.startswith(part[0])
        assert others.startswith(part[1])


@given(_object, st.lists(st.tuples(st.integers(0, 1000), st.text(max_size=3)), max_size=3), _cuts)
def test_broken_json_never_raises(
    value: dict[str, Any], spoiled: list[tuple[int, str]], cuts: list[int]
) -> None:
    text = json.dumps(value)
    for place, junk in spoiled:
        at = place % (len(text) + 1)
        text = text[:at] + junk + text[at + 1 :]
    read(cut(text, cuts))
    read(list(text))


def test_reading_stops_where_the_json_is_broken() -> None:
    for broken in (
        "",
        " ",
        "null",
        '"text"',
        "[{}]",
        '{"a" "b"}',
        '{"a":}',
        '{,"message":"x"}',
        '{"a":[1},"message":"x"}',
    ):
        assert read([broken])[0] == read(list(broken))[0] == "", broken
    for end in ("\\x", "\n", "\\ud83d!", "\\ude00", "\\u12g4", '","message":"other"'):
        assert read(list('{"message":"good' + end + ' bad","b":"x"}'))[0] == "good", end
