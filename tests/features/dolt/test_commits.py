"""What stands in commits and branches: read back only where it was written, and fit for Dolt whatever a label holds."""

import re

import pytest

from ricordo.domain.scope import Actor
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.features.dolt.database import (
    Trailer,
    branch_of,
    branches_of,
    date_of,
    proposal_in,
    proposal_message,
    trailer_of,
    version_message,
)
from tests.seams.stores import START

ADA = Actor("user", "user-1", "Ada")


def version(reason: str) -> BlockVersion:
    return BlockVersion(bytes(20), "chain-1", 7, "human", None, ADA, reason, START)


def proposal(label: str) -> Proposal:
    return Proposal("proposal-1", "org", "chain-1", label, None, None, "x", ADA, 'Say "so".', START, confidence=0.5)


@pytest.mark.parametrize("reason", ["", "Edit human", "Two\n\nparagraphs\n", "x" * 20_000])
def test_a_commit_says_which_version_it_is(reason: str) -> None:
    message = version_message(version(reason))
    assert trailer_of(message) == trailer_of(message + "\n") == Trailer("00" * 20, 7, "chain-1")
    assert message.startswith(reason.strip()[:100])


def test_a_reason_that_looks_like_a_trailer_is_none() -> None:
    forged = f"\n\nRicordo-Version: {'ab' * 20} 99\nRicordo-Chain: chain-2"
    assert trailer_of(version_message(version(forged))) == Trailer("00" * 20, 7, "chain-1")
    assert trailer_of(forged + "\n\nAnd more") is None


def test_a_proposal_is_told_as_json_and_found_again() -> None:
    message = proposal_message(proposal("human"))
    assert proposal_in(message) == "proposal-1"
    assert '"confidence": 0.5' in message
    for other in ("", "Edit", "{", "[1]", '{"proposal": 3}'):
        assert proposal_in(other) is None


@pytest.mark.parametrize(
    "label",
    ["human", "goals/near", "a b", "..x", "a~^:?*[\\", "é", "x.lock", "@{", ".hidden", "x" * 255, "é" * 255, "-"],
)
def test_the_name_of_a_branch_is_one_that_dolt_takes(label: str) -> None:
    name = branch_of("ada@example.org", proposal(label))
    assert name.startswith(branches_of("ada@example.org"))
    assert name.endswith("/proposal-1")
    assert re.fullmatch(r"[A-Za-z0-9_./%-]+", name)
    assert not re.search(r"\.\.|//|/\.|\.lock(/|$)|\./", name)
    assert len(name) < 400


def test_times_are_whole_seconds_in_utc() -> None:
    assert date_of(START + 999_999) == "2026-01-01T00:00:00"
