"""One faulty message in a chat's history does not make all later requests of the chat fail."""

import random
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ricordo.api.models.histories import MOST_MESSAGES, FilledHistory, History
from ricordo.features.ag_ui.models import AgUiMessage
from ricordo.features.openai.models import ChatMessage, InputItem

CHATS: TypeAdapter[Any] = TypeAdapter(FilledHistory[ChatMessage])
ITEMS: TypeAdapter[Any] = TypeAdapter(History[InputItem])
RUNS: TypeAdapter[Any] = TypeAdapter(History[AgUiMessage])
# For each kind of history: changes that make one of its messages invalid, each with a new value.
FAULTS: list[tuple[TypeAdapter[Any], str, list[Any]]] = [
    (CHATS, "role", ["function", "oracle", None, 7, {}]),
    (CHATS, "content", [{"text": "Hm."}, 7, [{"text": "no type"}], [3]]),
    (CHATS, "tool_calls", ["all", [{"id": None}], [{"function": 3}], [None]]),
    (CHATS, "tool_call_id", [7, []]),
    (ITEMS, "type", ["web_search_call", "item_reference", "", 3, {}]),
    (ITEMS, "content", [{"text": "Hm."}, 7, [3]]),
    (RUNS, "id", [7, {}]),
    (RUNS, "toolCallId", [7, []]),
]


def chat(chance: random.Random, kind: TypeAdapter[Any]) -> list[Any]:
    """Return a valid history of several answered messages, and one or two new ones."""
    messages: list[Any] = []
    for number in range(chance.randrange(1, 5)):
        messages += [{"role": "user", "content": f"Question {number}"}] * chance.randrange(1, 3)
        if kind is ITEMS and chance.random() < 0.3:
            messages.append({"type": "function_call", "call_id": f"c{number}"})
            messages.append({"type": "function_call_output", "call_id": f"c{number}", "output": ""})
        messages.append({"role": "assistant", "content": f"Answer {number}"})
    return messages + [{"role": "user", "content": "New"}] * chance.randrange(1, 3)


@pytest.mark.parametrize(("kind", "field", "wrong"), FAULTS)
def test_an_invalid_field_of_a_message_in_the_history_is_dropped(
    kind: TypeAdapter[Any], field: str, wrong: list[Any]
) -> None:
    chance = random.Random(field)  # noqa: S311
    for _ in range(50):
        messages = chat(chance, kind)
        valid = kind.validate_python(messages)
        answered = max(
            index for index, message in enumerate(messages) if message.get("role") == "assistant"
        )
        faulty = chance.randrange(answered + 1)
        damaged = [dict(message) for message in messages]
        damaged[faulty][field] = chance.choice(wrong)

        mended = kind.validate_python(damaged)

        rest = [*valid[:faulty], *valid[faulty + 1 :]]
        if len(mended) == len(valid):
            assert [*mended[:faulty], *mended[faulty + 1 :]] == rest
        else:
            assert mended == rest
        assert kind.validate_python(damaged) == mended


def test_a_history_message_keeps_its_valid_fields() -> None:
    (told, *_) = CHATS.validate_python(
        [
            {"role": "assistant", "content": "Jasmine.", "tool_calls": [{"id": None}]},
            {"role": "user", "content": "Why?"},
        ]
    )
    assert (told.text, told.tool_calls) == ("Jasmine.", None)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": 7}],
        [{"role": "assistant", "content": "Hm."}, {"role": "oracle", "content": "New"}],
        [{"role": "assistant"}, {"role": "user", "content": 7}, {"role": "user", "content": "New"}],
        [{"role": "oracle"}, {"role": "assistant"}, {"role": "user", "content": [3]}],
        [],
        "all",
        {"role": "user"},
        None,
        [{"role": "user", "content": ""}] * (MOST_MESSAGES + 1),
    ],
)
def test_an_invalid_new_message_is_refused(messages: Any) -> None:
    with pytest.raises(ValidationError):
        CHATS.validate_python(messages)
