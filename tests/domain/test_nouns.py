"""The nouns of the design are one frozen class each, in `domain/` and nowhere else."""

import dataclasses
import importlib
import pkgutil

import pytest

import ricordo.domain

NOUNS = """Agent Message Block BlockVersion Proposal Passage Tool ToolRule Run Step File Group User Job Conversation Archive
RunStarted TextDelta ReasoningDelta ToolCallDelta StepSaved ApprovalAsked Compacted RunEnded Failed""".split()
MODULES = [
    importlib.import_module(f"ricordo.domain.{module.name}") for module in pkgutil.iter_modules(ricordo.domain.__path__)
]


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_is_one_frozen_value(noun: str) -> None:
    (home,) = [
        module for module in MODULES if getattr(getattr(module, noun, None), "__module__", "") == module.__name__
    ]
    kind = getattr(home, noun)
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
