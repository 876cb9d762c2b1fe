"""Values of the domain: frozen classes for ids, labels, blocks, runs and counts of tokens."""

import dataclasses
import importlib
import pkgutil
import uuid
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ricordo.domain
from ricordo.domain.block import require_label
from ricordo.domain.ids import is_id, new_id, part_otid
from ricordo.domain.run import StopReason, status_after
from ricordo.domain.scope import Actor
from ricordo.domain.usage import Usage
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Forbidden, Invalid

NOUNS = """Agent Message Block BlockVersion Proposal Passage Tool ToolRule Run Step User Job Conversation Archive
RunStarted TextDelta ReasoningDelta ToolCallDelta StepSaved ApprovalAsked Compacted RunEnded Failed""".split()
MODULES = [
    importlib.import_module(f"ricordo.domain.{module.name}")
    for module in pkgutil.iter_modules(ricordo.domain.__path__)
]
ID = "message-1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e5f6"


def test_every_domain_noun_is_one_frozen_class() -> None:
    for noun in NOUNS:
        homes = [
            one
            for one in MODULES
            if getattr(getattr(one, noun, None), "__module__", "") == one.__name__
        ]
        assert len(homes) == 1, noun
        kind = getattr(homes[0], noun)
        assert dataclasses.is_dataclass(kind), noun
        assert kind.__dataclass_params__.frozen, noun


def test_an_id_is_a_prefix_and_a_version_4_uuid() -> None:
    made = [new_id("agent") for _ in range(500)]
    assert all(
        str(uuid.UUID(one.removeprefix("agent-"), version=4)) == one.removeprefix("agent-")
        for one in made
    )
    assert len(set(made)) == len(made)
    assert is_id(ID, "message")
    assert not is_id(ID, "agent")
    nearly = [
        ID.upper(),
        ID.replace("-4d2b", "-5d2b"),
        ID.replace("-8c3f", "-7c3f"),
        ID.removeprefix("message-"),
    ]
    for text in ("", "message-", ID + "\n", ID + "0", "x" + ID, *nearly):
        assert not is_id(text, "message"), text


def test_the_otid_of_a_part_has_the_part_number_as_its_last_byte() -> None:
    for part, end in ((0, "00"), (11, "0b"), (-1, "80")):
        assert part_otid(ID, part) == f"1b4e28ba-2fa1-4d2b-8c3f-a1b2c3d4e5{end}"


@given(st.integers(0, 70_000), st.integers(-1, 70_000))
def test_each_part_of_a_message_has_another_otid_in_the_form_of_a_uuid(
    part: int, other: int
) -> None:
    otid = part_otid(ID, part)
    assert str(UUID(otid)) == otid
    assert (part_otid(ID, other) == otid) == (part == other)


def test_labels_may_have_slashes_but_no_unsafe_or_reserved_parts() -> None:
    for label in [
        *"human Lieblings-Tee a/b/c/d 名前 historian my.history ..git .gitter human.md a~1 git".split(),
        "course/week 1",
        "x" * 255,
    ]:
        assert require_label(label) == label
    for label in (
        *(
            "",
            " ",
            "/",
            "/human",
            "human/",
            "a//b",
            "a/ /b",
            "two\nlines",
            "nul\x00",
            "<human>",
            "del\x7f",
            "x" * 256,
        ),
        *(
            "git~1",
            ".git./x",
            ".gitmodules",
            ".GIT \u200b".strip(),
            "a/.g\u200cit",
            "a\\.git",
            "notes.md/b",
            "a.MD/b/c",
        ),
    ):
        with pytest.raises(Invalid, match="cannot be used"):
            require_label(label)
    for label in (
        ".",
        "..",
        "a/../b",
        ".git/config",
        ".GIT",
        "history",
        "human/History",
        "a/restore",
        "compare/b",
    ):
        with pytest.raises(Invalid, match="is reserved"):
            require_label(label)


def test_a_stop_reason_decides_the_status_of_a_run() -> None:
    completed = {"end_turn", "max_steps", "tool_rule", "requires_approval"}
    for reason in get_args(StopReason):
        expected = (
            "cancelled"
            if reason == "cancelled"
            else "completed"
            if reason in completed
            else "failed"
        )
        assert status_after(reason) == expected, reason


def test_usages_are_added_by_kind_and_unreported_counts_stay_unreported() -> None:
    total = Usage(10, 5, cached_tokens=4) + Usage(20, 7, reasoning_tokens=3)
    assert total == Usage(30, 12, cached_tokens=4, cache_write_tokens=None, reasoning_tokens=3)
    assert total.total_tokens == 42


def test_a_refused_change_is_advised_to_be_proposed_only_where_it_can_be() -> None:
    metadata = ChangeMetadata(Actor("agent", "agent-1"))
    with pytest.raises(Forbidden, match=r"Propose the change instead\.$"):
        metadata.require("human", "propose", None)
    with pytest.raises(Forbidden, match=r"may not change it\. Ask its owner\.$"):
        metadata.require("human", "read_only", None)
