"""Open proposals as branches `agent/{label}/{id}`: one commit on top of the version that each was made from.

A branch's commit depends on what is stored alone, so that every server makes the same.
"""

from dataclasses import dataclass, replace

from ricordo.domain.git_objects import blob_id, commit_body, signature, tree_of
from ricordo.domain.scope import Actor
from ricordo.domain.version import Proposal
from ricordo.features.git import history, queries
from ricordo.features.git.objects import GitObject, git_object
from ricordo.storage import proposals, versions
from ricordo.storage.store import Transaction

PREFIX = b"refs/heads/agent/"


@dataclass(frozen=True, slots=True)
class ProposalBranch:
    """A proposal as a branch: its name, and the objects of its commit, which is the last of them."""

    proposal: Proposal
    name: bytes
    objects: tuple[GitObject, ...]

    @property
    def commit(self) -> bytes:
        """The id of the commit."""
        return self.objects[-1].id


def open_branches(tx: Transaction, chain_id: str) -> list[ProposalBranch]:
    """The branches of the proposals of a chain that wait."""
    return [_branch(tx, one) for one in proposals.waiting(tx, chain_id)]


def approve_merged(tx: Transaction, chain_id: str, by: Actor) -> None:
    """Mark the proposals as approved whose commits the owner merged elsewhere."""
    chain = versions.lock(tx, chain_id)
    for branch in open_branches(tx, chain_id) if chain else ():
        if not queries.pushed(tx, chain_id, branch.commit):
            continue
        now, note = tx.clock.now(), "Merged at a remote"
        approved = replace(branch.proposal, status="approved", resolved_at=now, resolved_by=by.id, note=note)
        proposals.settle(tx, replace(approved, result=chain.head if chain else None))


def _branch(tx: Transaction, proposal: Proposal) -> ProposalBranch:
    base = proposal.base or queries.head_at(tx, proposal.chain_id, proposal.created_at)
    number = (history.number_of(tx, proposal.chain_id, base) or 0) if base else 0
    files = dict(history.begin(tx, proposal.chain_id, number).files)
    files.pop(proposal.label, None)
    made: list[GitObject] = []
    if proposal.value is not None:
        made.append(git_object("blob", proposal.value.encode()))
        files[proposal.new_label or proposal.label] = blob_id(proposal.value)
    tree = tree_of(files)
    made += [GitObject("tree", id, body) for id, body in tree.bodies.items()]
    parents = (base,) if base else ()
    body = commit_body(tree.id, parents, signature(proposal.author), proposal.created_at, _message(proposal))
    made.append(git_object("commit", body))
    name = PREFIX + f"{_ref_name(proposal.label)}/{proposal.id}".encode()
    return ProposalBranch(proposal, name, tuple(made))


def _message(proposal: Proposal) -> str:
    lines = [proposal.reasoning or f"Edit {proposal.label}", "", f"Proposal: {proposal.id}"]
    if proposal.confidence is not None:
        lines.append(f"Confidence: {proposal.confidence:g}")
    if proposal.step_id:
        lines.append(f"Step: {proposal.step_id}")
    return "\n".join(lines) + "\n"


def _ref_name(label: str) -> str:
    """The label as a part of a branch's name, which may not hold all that a label may."""
    parts = (
        "".join("-" if sign in " ~^:?*[\\" or not sign.isprintable() else sign for sign in part)
        for part in label.split("/")
    )
    return "/".join(
        part.replace("..", "-").replace("@{", "-").strip(".").removesuffix(".lock") or "-" for part in parts
    )
