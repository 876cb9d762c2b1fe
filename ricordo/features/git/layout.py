"""A memory in the layout of YouLab's first storage, on a branch of its own: `blocks/<label>.toml`, `pending_diffs/<id>.json`.

The branch is one commit that shows the memory as it is, without parents: its history is on `main`. A folder in this layout can be
imported, which puts its blocks and proposes its diffs.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ricordo.domain.block import Block, require_label
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.git_objects import commit_body, signature
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Invalid, RicordoError
from ricordo.features.formats.service import from_toml, to_toml
from ricordo.features.git.objects import GitObject, git_object
from ricordo.memory import schemas, user_memory
from ricordo.memory.proposals import Draft, propose
from ricordo.storage import blocks, history, proposals
from ricordo.storage.store import Store, Transaction

BRANCH = b"refs/heads/toml"
_BLOCKS, _DIFFS = "blocks", "pending_diffs"
_FILE = 0o100644
_RICORDO = Actor("system", "ricordo", "Ricordo")
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportedFolder:
    """What came of an import: the labels that were put, the ids of proposals, and why each of the other files was left out."""

    blocks: tuple[str, ...]
    proposals: tuple[str, ...]
    faults: Mapping[str, str]


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


async def import_folder(
    store: Store, scope: Scope, user_name: str, folder: Path, by: Actor, schema_folder: Path
) -> ImportedFolder:
    """Put the blocks of a folder in this layout into a user's memory, and propose its diffs, each file alone.

    Raises Invalid where there are no such files.
    """
    found = sorted([*(folder / _BLOCKS).rglob("*.toml"), *(folder / _DIFFS).glob("*.json")])
    if not found:
        raise Invalid(f"{folder} holds neither {_BLOCKS}/*.toml nor {_DIFFS}/*.json. Name the folder of one user.")
    put: list[str] = []
    proposed: list[str] = []
    faults: dict[str, str] = {}
    for path in found:
        name = path.relative_to(folder).as_posix()
        try:
            text = _read(path)
            if path.suffix == ".toml":
                label = path.relative_to(folder / _BLOCKS).with_suffix("").as_posix()
                put.append(await store.write(lambda tx: _put(tx, scope, user_name, label, text, by, schema_folder)))  # noqa: B023
            elif made := await store.write(lambda tx: _propose(tx, scope, user_name, text)):  # noqa: B023
                proposed.append(made)
        except (RicordoError, OSError, ValueError) as error:
            faults[name] = str(error)
    return ImportedFolder(tuple(put), tuple(proposed), faults)


def _read(path: Path) -> str:
    if path.is_symlink() or path.stat().st_size > _MOST_BYTES:
        raise Invalid(f"This is a link, or larger than {_MOST_BYTES} bytes.")
    return path.read_text(encoding="utf-8")


def _put(
    tx: Transaction, scope: Scope, user_name: str, file_label: str, text: str, by: Actor, schema_folder: Path
) -> str:
    owned = user_memory.open_memory(tx, scope, user_name, makes=True)
    block = user_memory.find(tx, owned, file_label)
    parsed = from_toml(text, _schema(block, schema_folder) if block else None)
    label = require_label(parsed.label or file_label)
    user_memory.put(tx, owned, label, parsed.text, by, user_memory.PutOptions(message=f"Import {label}"))
    return label


def _propose(tx: Transaction, scope: Scope, user_name: str, text: str) -> str | None:
    diff = orjson.loads(text)
    if not isinstance(diff, dict) or diff.get("status", "open") not in ("open", "pending", "conflicted"):
        return None
    label, value, agent_id = diff.get("block_label"), diff.get("proposed_value"), diff.get("agent_id")
    if not isinstance(label, str) or not isinstance(value, str | None) or not isinstance(agent_id, str) or not agent_id:
        raise Invalid("The diff lacks block_label, proposed_value or agent_id, or they are no texts.")
    confidence = diff.get("confidence")
    if confidence is not None and not (isinstance(confidence, int | float) and 0 <= confidence <= 1):
        raise Invalid("The confidence must lie between 0 and 1.")
    owned = user_memory.open_memory(tx, scope, user_name, makes=True)
    block = user_memory.find(tx, owned, require_label(label))
    (block or Block("", scope.organization_id, owned.chain.id, label, "")).require_fits(value or "")
    draft = Draft(owned.chain.id, owned.chain.organization_id, label, value, block, confidence=confidence)
    return propose(tx, draft, ChangeMetadata(Actor("agent", agent_id, agent_id), str(diff.get("reasoning") or ""))).id


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
