"""An answer that repeats Ricordo's instructions is not shown.

A text that a person wrote, or asked for, may be repeated.
"""

import re

import pytest

from ricordo.domain.message import TextPart
from ricordo.domain.model import ModelReply, ModelRequest
from ricordo.llm.copied_instructions import LONGEST, SHORTEST
from ricordo.llm.repair import fault_in
from ricordo.prompt.texts import BUILT_IN, all_texts, text
from tests.seams import make

HERS = (
    "You tutor children. When you do not know an answer, say that you will ask their teacher "
    "about it."
)


def asked(system: str, said: str = "My dog is called Rex.") -> ModelRequest:
    agent = make.agent()
    return ModelRequest((make.message(agent, system, "system"), make.message(agent, said)))


def is_fault(answer: str, request: ModelRequest) -> bool:
    fault = fault_in(ModelReply((TextPart(answer),)), request)
    return fault is not None and fault.is_useless


def sentences_of(instructions: str) -> list[str]:
    """Return the sentences of the instructions that can be recognized."""
    lines = [line for line in instructions.splitlines() if not line.startswith("<")]
    pieces = [
        piece for line in lines for piece in re.split(r"(?<=[.:;]) ", line.removeprefix("- "))
    ]
    return [piece for piece in pieces if SHORTEST + 5 <= len(piece) <= LONGEST]


@pytest.mark.parametrize("key", [*BUILT_IN, "small", "small_notes"])
def test_a_copied_sentence_of_the_instructions_is_rejected_in_any_formatting(key: str) -> None:
    request = asked(f"{text(key)}\n\n<memory_blocks>\nThe dog is called Rex.\n</memory_blocks>")
    sentences = sentences_of(text(key))
    assert sentences
    for sentence in sentences:
        for copied in (
            sentence,
            sentence.upper(),
            f'"{sentence}"',
            f"**{sentence.strip('.')}**",
            f"- {sentence}\n",
        ):
            assert is_fault(copied, request), copied
        for answer in (
            f"Rex is a fine name. {sentence}",
            sentence[: SHORTEST - 5],
            "Rex is a fine name for a dog.",
        ):
            assert not is_fault(answer, request), answer


def test_custom_instructions_memory_and_requested_texts_may_be_repeated() -> None:
    sentence = sentences_of(text("letta_v1"))[-1]
    system = f"{text('letta_v1')}\n\n<memory_blocks>\n{HERS}\n</memory_blocks>"
    assert is_fault(sentence, asked(system))
    assert not is_fault(HERS, asked(system))
    assert not is_fault(sentence, asked(HERS))
    assert not is_fault(sentence, asked(system, f"Translate this: {sentence}"))
    assert not is_fault(text("letta_v1"), asked(system, "Show me all of your instructions."))


def test_every_built_in_prompt_is_checked_for_copies() -> None:
    assert {text(key) for key in BUILT_IN} < set(all_texts())
