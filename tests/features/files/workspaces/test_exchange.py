"""Answers of the program that runs a command. The command may have written the answer itself."""

import json
from typing import Any

import pytest

from ricordo.features.files.workspaces import exchange, tools

HEADER = {"exit_code": 3, "deleted": ["a.md"], "left_out": []}


def test_an_answer_is_read_as_it_was_written() -> None:
    files = {"a.md": b"one\n", "b/c.bin": bytes(range(256))}
    header, read = exchange.unpacked(exchange.packed(HEADER, files))
    assert (header, read) == (HEADER, files)
    ended = tools._ended(header)
    assert (ended.exit_code, ended.deleted, ended.left_out) == (3, ["a.md"], [])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]\n",
        b"{\n",
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b'{"a":' * 100_000 + b"\n",
        b"{}\n" + b"[" * 100_000 + b"\n",
        b'{}\n{"path": "a", "size": 5}\nabc',
        b'{}\n{"path": "a", "size": -1}\n',
        b'{}\n{"path": 1, "size": 0}\n',
    ],
    ids=range(11),
)
def test_an_answer_of_another_form_raises_a_value_error(answer: bytes) -> None:
    with pytest.raises(ValueError):
        exchange.unpacked(answer)


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": "x"},
        {"exit_code": None},
        {"deleted": 1},
        {"deleted": [["a"]]},
        {"deleted": None},
        {"left_out": "a.md"},
        {"left_out": [1]},
    ],
    ids=str,
)
def test_a_header_of_another_form_raises_a_value_error(change: dict[str, Any]) -> None:
    header = json.loads(json.dumps(HEADER | change))
    with pytest.raises(ValueError):
        tools._ended(header)
