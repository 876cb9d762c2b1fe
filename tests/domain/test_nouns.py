"""The nouns of the design are one frozen class each, in `domain/` and nowhere else."""

import dataclasses
import importlib
import pkgutil

import ricordo.domain

NOUNS = """Agent Message Block BlockVersion Proposal Passage Tool ToolRule Run Step User Job Conversation Archive
RunStarted TextDelta ReasoningDelta ToolCallDelta StepSaved ApprovalAsked Compacted RunEnded Failed""".split()
MODULES = [
    importlib.import_module(f"ricordo.domain.{module.name}") for module in pkgutil.iter_modules(ricordo.domain.__path__)
]


def test_a_noun_is_one_frozen_value() -> None:
    for noun in NOUNS:
        homes = [one for one in MODULES if getattr(getattr(one, noun, None), "__module__", "") == one.__name__]
        assert len(homes) == 1, noun
        kind = getattr(homes[0], noun)
        assert dataclasses.is_dataclass(kind), noun
        assert kind.__dataclass_params__.frozen, noun
