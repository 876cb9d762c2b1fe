from dataclasses import replace
from typing import get_args

import pytest

from ricordo.domain.version import Proposal, ProposalStatus
from ricordo.errors import Conflict

PROPOSAL = Proposal("proposal-1", "chain-1", "human", None, "Likes tea.", "agent-1", "She said so.", 0)


def test_a_new_proposal_waits() -> None:
    PROPOSAL.require_open()


@pytest.mark.parametrize("status", [status for status in get_args(ProposalStatus) if status != "open"])
def test_a_settled_proposal_cannot_be_settled_again(status: ProposalStatus) -> None:
    with pytest.raises(Conflict, match=f"is {status} already"):
        replace(PROPOSAL, status=status).require_open()
