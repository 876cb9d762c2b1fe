"""Every shape of owned memory holds what its wire function makes, with all there can be in it and with the least."""

from typing import Any

from ricordo.api.wire.versions import (
    BlamedLineShape,
    ComparisonShape,
    DecidedShape,
    LineageShape,
    OutcomeShape,
    ProposalShape,
    UndoneShape,
    UserBlockShape,
    VersionShape,
    blame_to_wire,
    comparison_to_wire,
    decided_to_wire,
    decision_to_wire,
    lineage_to_wire,
    proposal_to_wire,
    undone_to_wire,
    user_block_to_wire,
    version_to_wire,
)
from ricordo.domain.scope import LOCAL_ORGANIZATION, Actor
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.memory.approval import Approved, Conflicted, Decision, Undone, UndoneBlock
from ricordo.memory.history import BlamedLine
from ricordo.memory.lineage import HeldBlock, Lineage
from tests.api.wire.fits import require_fits
from tests.support import make
from tests.support.clock import START

ID, OTHER = bytes(range(20)), bytes(range(1, 21))
NINA = Actor("agent", "agent-1", "Nina")


def version(**fields: Any) -> BlockVersion:
    """A version that an agent made."""
    given: dict[str, Any] = {"blob": OTHER, "author": NINA, "reason": "A reason", "created_at": START}
    return BlockVersion(ID, "chain-1", 7, "human", **given | fields)


def proposal(**fields: Any) -> Proposal:
    """A proposal of an agent's."""
    given: dict[str, Any] = {"base": ID, "base_value": "Ada", "value": "Ada L.", "reasoning": "", "created_at": START}
    return Proposal("proposal-1", LOCAL_ORGANIZATION, "chain-1", "human", author=NINA, **given | fields)


def test_a_block_of_a_users_has_its_shape_with_a_version_and_without() -> None:
    whole = make.block(
        head=ID, title="Me", schema_ref="s", course="c", agent_id="a", policy="propose", metadata={"n": 1}
    )
    wire = user_block_to_wire(whole, 3)
    require_fits(UserBlockShape, wire)
    assert (wire["version"], wire["pending"], wire["body"]) == (ID.hex(), 3, whole.value)
    require_fits(UserBlockShape, user_block_to_wire(make.block(read_only=True), 0))
    assert user_block_to_wire(make.block(read_only=True, policy="direct"), 0)["policy"] == "read_only"


def test_a_version_has_its_shape_and_its_author_a_name_whatever_there_is_of_it() -> None:
    wire = version_to_wire(version(parents=(OTHER,), old_label="person", approved_by="user-1", run_id="run-1"))
    require_fits(VersionShape, wire)
    assert (wire["sha"], wire["author"], wire["message"]) == (ID.hex(), "Nina", "A reason")
    assert wire["parents"] == [OTHER.hex()]
    nameless = version_to_wire(version(blob=None, author=Actor("system", "import")))
    require_fits(VersionShape, nameless)
    assert (nameless["author"], nameless["is_deleted"]) == ("import", True)


def test_a_proposal_has_its_shape_whether_it_makes_changes_renames_or_deletes() -> None:
    for one in (
        proposal(confidence=0.5, expires_at=START, resolved_at=START, resolved_by="user-1", result=OTHER),
        proposal(base=None, base_value=None, description="New"),
        proposal(value=None),
        proposal(value="Ada", new_label="person"),
    ):
        require_fits(ProposalShape, proposal_to_wire(one))
    assert proposal_to_wire(proposal(value=None))["diff"].splitlines()[3] == "-Ada"
    assert proposal_to_wire(proposal(value="Ada", new_label="person"))["diff"] == ""


def test_decisions_have_their_shapes() -> None:
    approved = proposal(status="approved", result=OTHER)
    require_fits(DecidedShape, decided_to_wire(approved, make.block(head=OTHER), 1))
    require_fits(DecidedShape, decided_to_wire(proposal(status="approved"), None, 0))
    stuck = Conflicted(proposal(status="conflicted", note="Why"), "a", "b", "c")
    for decision in (
        Decision("proposal-1", "approved", Approved(approved, None)),
        Decision("proposal-1", "conflicted", stuck, "Why"),
        Decision("proposal-1", "rejected", proposal(status="rejected")),
        Decision("proposal-1", "failed", error="Why"),
    ):
        require_fits(OutcomeShape, decision_to_wire(decision))
    assert decision_to_wire(Decision("proposal-1", "approved", Approved(approved, None)))["version"] == OTHER.hex()


def test_an_undone_run_has_its_shape_and_names_a_block_as_it_is_called_now() -> None:
    blocks = (
        UndoneBlock("chain-1", "person", "undone", make.block("human", head=ID)),
        UndoneBlock("chain-1", "gone", "conflicted", None, "Why"),
    )
    wire = undone_to_wire(Undone("run-1", blocks, (proposal(),)))
    require_fits(UndoneShape, wire)
    assert [one["label"] for one in wire["blocks"]] == ["human", "gone"]


def test_an_answers_lineage_has_its_shape_also_where_something_is_gone() -> None:
    require_fits(LineageShape, lineage_to_wire(Lineage("message-1")))
    passage = make.passage(make.archive(), tags=("tea",))
    held = (HeldBlock("block-1", ID.hex(), version()), HeldBlock("block-2", OTHER.hex(), None))
    whole = Lineage("message-1", "run-1", "step-1", True, held, (passage,), ("passage-9",), (version(),), (proposal(),))
    wire = lineage_to_wire(whole)
    require_fits(LineageShape, wire)
    assert [(one["label"], one["sha"]) for one in wire["blocks"]] == [("human", ID.hex()), (None, OTHER.hex())]


def test_blame_and_comparison_have_their_shapes() -> None:
    (wire,) = blame_to_wire([BlamedLine(1, "Ada", version())])
    require_fits(BlamedLineShape, wire)
    require_fits(ComparisonShape, comparison_to_wire((None, ""), (ID.hex(), "Ada"), "human"))
    assert comparison_to_wire((ID.hex(), "Ada"), (ID.hex(), "Ada"), "human")["unified"] == ""
