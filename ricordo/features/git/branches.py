"""The branches of a git remote beside `main`: open proposals, and on request the memory as TOML.

A proposal is `agent/{label}/{id}`, one commit on top of the version that it was made from. `toml` is one commit without parents
that shows the memory as it is, in the layout of YouLab's first storage: `blocks/<label>.toml` and `pending_diffs/<id>.json`.
Each commit depends on what is stored alone, so that every server makes the same.
"""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ricordo.domain.block import Block
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.git_objects import blob_id, commit_body, signature, tree_of
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import Proposal
from ricordo.errors import RicordoError
from ricordo.features.formats.service import to_toml
from ricordo.features.git import history, queries
from ricordo.features.git.objects import GitObject, git_object
from ricordo.memory import schemas
from ricordo.storage import blocks, proposals, versions
from ricordo.storage import history as stored_history
from ricordo.storage.engine.store import Transaction

PREFIX = b"refs/heads/agent/"
TOML_BRANCH = b"refs/heads/toml"
_NOT_IN_REFS = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{")
_RICORDO = Actor("system", "ricordo", "Ricordo")


class ProposalBranch(NamedTuple):
    """A proposal as a branch: its name, and the objects of its commit, which is the last of them."""

    proposal: Proposal
    name: bytes
    objects: tuple[GitObject, ...]

    @property
    def commit(self) -> bytes:
        return self.objects[-1].id


def open_branches(tx: Transaction, chain_id: str) -> list[ProposalBranch]:
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
    parts = (_NOT_IN_REFS.sub("-", part).strip(".").removesuffix(".lock") or "-" for part in label.split("/"))
    return "/".join(parts)


def toml_commit(
    tx: Transaction, scope: Scope, chain_id: str, owner: Actor, schema_folder: Path
) -> tuple[GitObject, ...]:
    """The objects of the branch's commit, which is the last of them; the same memory gives the same commit."""
    files = {
        f"blocks/{block.label}.toml": to_toml(block.label, block.value, _schema(block, schema_folder)).encode()
        for block in blocks.of_user(tx, scope, owner.id)
    }
    waiting = proposals.waiting(tx, chain_id)
    files |= {
        f"pending_diffs/{one.id}.json": orjson.dumps(_diff(one, owner), option=orjson.OPT_INDENT_2) for one in waiting
    }
    newest = stored_history.page(tx, chain_id, limit=1)
    changed_at = max([one.created_at for one in newest] + [one.created_at for one in waiting], default=0)
    texts = {path: git_object("blob", content) for path, content in files.items()}
    tree = tree_of({path: text.id for path, text in texts.items()}, suffix="")
    trees = [GitObject("tree", id, body) for id, body in tree.bodies.items()]
    body = commit_body(tree.id, (), signature(_RICORDO), changed_at, "Memory as TOML\n")
    return (*texts.values(), *trees, git_object("commit", body))


def _schema(block: Block, folder: Path) -> BlockSchema | None:
    if block.schema_ref:
        with suppress(RicordoError):
            return schemas.read_schema(block.schema_ref, folder)
    return None


def _diff(proposal: Proposal, owner: Actor) -> dict[str, Any]:
    return {
        "id": proposal.id,
        "user_id": owner.name,
        "agent_id": proposal.author.id,
        "block_label": proposal.label,
        "current_value": proposal.base_value,
        "proposed_value": proposal.value,
        "reasoning": proposal.reasoning,
        "confidence": proposal.confidence,
        "status": proposal.status,
        "created_at": to_datetime(proposal.created_at - proposal.created_at % SECOND).isoformat(),
        "reviewed_at": None,
    }
