"""A memory in the layout of YouLab's first storage, on a branch of its own: `blocks/<label>.toml`, `pending_diffs/<id>.json`.

The branch is one commit that shows the memory as it is, without parents: its history is on `main`.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ricordo.domain.block import Block
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.git_objects import commit_body, signature
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import Proposal
from ricordo.errors import RicordoError
from ricordo.features.formats.service import to_toml
from ricordo.features.git.objects import GitObject, git_object
from ricordo.memory import schemas
from ricordo.storage import blocks, history, proposals
from ricordo.storage.store import Transaction

BRANCH = b"refs/heads/toml"
_BLOCKS, _DIFFS = "blocks", "pending_diffs"
_FILE = 0o100644
_RICORDO = Actor("system", "ricordo", "Ricordo")


def toml_commit(
    tx: Transaction, scope: Scope, chain_id: str, owner: Actor, schema_folder: Path
) -> tuple[GitObject, ...]:
    """The objects of the branch's commit, which is the last of them; the same memory gives the same commit."""
    files = {
        f"{_BLOCKS}/{block.label}.toml": to_toml(block.label, block.value, _schema(block, schema_folder)).encode()
        for block in blocks.of_user(tx, scope, owner.id)
    }
    waiting = proposals.waiting(tx, chain_id)
    files |= {f"{_DIFFS}/{one.id}.json": orjson.dumps(_diff(one, owner), option=orjson.OPT_INDENT_2) for one in waiting}
    newest = history.page(tx, chain_id, limit=1)
    changed_at = max([one.created_at for one in newest] + [one.created_at for one in waiting], default=0)
    texts = {path: git_object("blob", content) for path, content in files.items()}
    tree, trees = _trees(texts)
    body = commit_body(tree, (), signature(_RICORDO), changed_at, "Memory as TOML\n")
    return (*texts.values(), *trees, git_object("commit", body))


def _trees(texts: Mapping[str, GitObject]) -> tuple[bytes, list[GitObject]]:
    from dulwich.index import commit_tree
    from dulwich.object_store import MemoryObjectStore

    made = MemoryObjectStore()
    entries: Any = [(path.encode(), text.id.hex().encode(), _FILE) for path, text in texts.items()]
    root = commit_tree(made, entries)
    return bytes.fromhex(root.decode()), [git_object("tree", made[id].as_raw_string()) for id in made]


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
