"""A fact is removed from any result of a tool, and every reader can still read the result."""

from functools import partial
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.message import Message, ToolCallPart, ToolReturnPart
from ricordo.features.memory_care.forgetting.needle import (
    BOTH,
    Needle,
    blank,
    change_strings,
    strings_in,
)
from ricordo.features.memory_care.forgetting.source_queries import without_words
from ricordo.memory.edits import search_results
from ricordo.prompt.transcript import transcript
from tests.seams import make

NUMBER = 5551234
NEEDLE = Needle(str(NUMBER))
# A value with the number somewhere: as a number, as a text, or in a text.
CALL = ToolCallPart("call-1", "look_up", "{}")
LEAVES = st.sampled_from([NUMBER, str(NUMBER), f"Her number is {NUMBER}.", f'"{NUMBER}'])
OTHERS = st.none() | st.booleans() | st.integers(0, 99) | st.sampled_from(["tea", "", "[", "{}"])
VALUES = st.recursive(
    LEAVES | OTHERS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["phone", "results", "note"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def result_of(content: str, **fields: Any) -> Message:
    result = ToolReturnPart(CALL.call_id, CALL.name, "success", content, **fields)
    return make.message(make.agent(), role="tool", parts=(result,))


@given(VALUES, st.booleans(), st.booleans())
def test_a_result_without_a_fact_can_be_read_and_does_not_contain_it(
    value: Any, is_json: bool, by_search: bool
) -> None:
    content = orjson.dumps(value).decode() if is_json or not isinstance(value, str) else value
    found = {"sources": ("passage-1",), "said": ("passage-1",)} if by_search else {}
    message = without_words(result_of(content, is_json=is_json, **found), NEEDLE, BOTH)
    (result,) = message.tool_returns
    assert not NEEDLE.is_in(result.content)
    asking = make.message(make.agent(), role="assistant", parts=(CALL,))
    for has_plain_results in (False, True):
        transcript([asking, message], "UTC", 8000, has_plain_results=has_plain_results)
    search_results([message])
    assert without_words(message, NEEDLE, BOTH) == message


@given(st.dictionaries(st.sampled_from(["phone", "name", "id", "note"]), VALUES, max_size=3))
def test_metadata_does_not_contain_a_forgotten_number(metadata: dict[str, Any]) -> None:
    """Metadata of people may be a column, or inside the JSON of another one."""
    for value, is_free in ((metadata, True), ({"agent": {"metadata": metadata}}, False)):
        changed = change_strings(value, partial(blank, needle=NEEDLE), is_free=is_free)
        assert str(NUMBER) not in orjson.dumps(changed).decode()
        assert not any(map(NEEDLE.is_in, strings_in(changed, is_free=is_free)))


def test_numbers_that_the_server_reads_stay() -> None:
    settings = {"max_tokens": NUMBER, "seq": [NUMBER]}
    assert change_strings(settings, partial(blank, needle=NEEDLE)) == settings


def test_a_result_without_the_fact_is_unchanged() -> None:
    message = result_of(orjson.dumps({"phone": 5550000, "note": "tea"}).decode(), is_json=True)
    assert without_words(message, NEEDLE, BOTH) is message
