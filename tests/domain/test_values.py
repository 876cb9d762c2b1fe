"""Values of the domain: each noun of the design is one frozen class, and runs, proposals and counts of tokens behave."""

import dataclasses
import importlib
import pkgutil
from typing import get_args

import pytest

import ricordo.domain
from ricordo.domain.run import StopReason, status_after
from ricordo.domain.scope import Actor
from ricordo.domain.usage import Usage
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.errors import Conflict

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


def test_a_run_ends_in_the_status_its_stop_reason_says() -> None:
    completed = {"end_turn", "max_steps", "tool_rule", "requires_approval"}
    for reason in get_args(StopReason):
        expected = "cancelled" if reason == "cancelled" else "completed" if reason in completed else "failed"
        assert status_after(reason) == expected, reason


def test_a_settled_proposal_cannot_be_settled_again() -> None:
    agent = Actor("agent", "agent-1", "Tutor")
    waits = Proposal("proposal-1", "org-1", "chain-1", "human", None, None, "Likes tea.", agent, "She said so.", 0)
    for status in get_args(ProposalStatus):
        one = dataclasses.replace(waits, status=status)
        if status in ("open", "conflicted"):
            one.require_waiting()
            continue
        with pytest.raises(Conflict, match=f"is {status} already"):
            one.require_waiting()


def test_usages_add_by_kind_and_unreported_stays_unreported() -> None:
    total = Usage(10, 5, cached_tokens=4) + Usage(20, 7, reasoning_tokens=3)
    assert total == Usage(30, 12, cached_tokens=4, cache_write_tokens=None, reasoning_tokens=3)
    assert total.total_tokens == 42
