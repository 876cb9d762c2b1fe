from dataclasses import replace
from typing import get_args

import pytest

from ricordo.domain.scope import Actor
from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.errors import Conflict

AGENT = Actor("agent", "agent-1", "Tutor")
PROPOSAL = Proposal("proposal-1", "org-1", "chain-1", "human", None, None, "Likes tea.", AGENT, "She said so.", 0)


def test_a_new_proposal_waits() -> None:
    PROPOSAL.require_waiting()


@pytest.mark.parametrize(
    "status", [status for status in get_args(ProposalStatus) if status not in ("open", "conflicted")]
)
def test_a_settled_proposal_cannot_be_settled_again(status: ProposalStatus) -> None:
    with pytest.raises(Conflict, match=f"is {status} already"):
        replace(PROPOSAL, status=status).require_waiting()
