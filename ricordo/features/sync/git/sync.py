"""Git repositories as remotes of a user's memory.

The remote has the memory's commits on `main`, and a branch for each waiting proposal. The owner's
commits there become versions, as pushed commits do. Each step can be repeated, and a branch of the
remote moves only after all objects that it needs are stored. So after a kill at any point, the next
run brings memory and remote in sync.

The branch of a proposal is `agent/{label}/{id}`. Its one commit follows the proposal's base
version. On request there is a branch `toml`. It has one commit without parents, with the present
memory. Its layout is that of YouLab's first storage (`blocks/<label>.toml` and
`pending_diffs/<id>.json`). Each commit depends only on stored rows, so all servers make the same
commits.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ricordo.domain.authors import signature
from ricordo.domain.block import Block, Chain
from ricordo.domain.block_schema import BlockSchema
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.git_objects import GitObject, blob_id, commit_body, tree_of
from ricordo.domain.remote import Access, Remote
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Conflict, Invalid, RicordoError
from ricordo.features.sync.git import history, transport
from ricordo.features.sync.git.adoption import Adoption, Describe, adopt, require_not_rewritten
from ricordo.features.sync.git.objects import MOST_BYTES, Commit, git_object, read_pack
from ricordo.features.sync.git.push import Push, known_parents, merged
from ricordo.features.sync.git.repository import BRANCH, find_object, open_repository, refreshed
from ricordo.features.sync.git.transport import GitAddress
from ricordo.features.sync.remotes.service import (
    FolderMarker,
    RemoteMoved,
    owner_of,
    require_lease,
    until_settled,
)
from ricordo.features.typed_memory.formats.service import to_toml
from ricordo.memory import approval, schemas
from ricordo.memory.commit_authors import CommitAuthors
from ricordo.offload import offload
from ricordo.settings import Settings
from ricordo.storage import blocks, git_objects, proposals, rewriting, versions
from ricordo.storage import history as stored_history
from ricordo.storage.chain_files import OWNER_FILE
from ricordo.storage.engine.store import Store, Transaction

PREFIX = b"refs/heads/agent/"
TOML_BRANCH = b"refs/heads/toml"
_NOT_IN_REFS = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{")
_RICORDO = Actor("system", "ricordo", "Ricordo")
# The branch with the memory's side of a conflict, which the owner can merge.
CONFLICT_BRANCH = b"refs/heads/from-ricordo"
# The option for a branch that shows the memory as TOML.
SHOWS_TOML = "shows_toml"
Refs = Mapping[bytes, bytes]


class GitRemotes:
    """Remotes of the kind `git`, in a local folder or at an http address."""

    kind = "git"

    def read(self, access: Access, settings: Settings) -> Access:
        """Check the address and the options, and return their normal form.

        Args:
            access: The access as the caller gave it.
            settings: The operator's permissions for addresses.

        Raises:
            Invalid: if the address cannot be a remote, or an option is unknown.
        """
        if access.options.keys() - {SHOWS_TOML}:
            raise Invalid(f"A git remote only takes the option {SHOWS_TOML}. Leave the others out.")
        address = _address(access, settings)
        usable_address = address.require_usable()
        if address.is_folder:
            for parent in Path(usable_address).parents:
                if (parent / "HEAD").is_file():
                    raise Invalid(
                        f"{usable_address} is inside a git repository, and a remote cannot be. "
                        f"Choose a folder outside of {parent}."
                    )
            return Access(usable_address, options=access.options)
        if access.password is None:
            username = None
        else:
            username = address.username
        return Access(address.address, username, access.password, access.options)

    def marker(self, address: str) -> FolderMarker | None:
        """Return the file that names the owner of a repository in a local folder.

        Args:
            address: The address of a remote. For an http address, None is returned.
        """
        folder = Path(address)
        if not GitAddress(address).is_folder:
            return None
        return FolderMarker(folder.resolve() / OWNER_FILE, folder / "HEAD")

    async def sync(
        self, store: Store, remote: Remote, access: Access, settings: Settings
    ) -> Remote:
        """Pull from the repository, then push; a failure loses nothing.

        Args:
            store: The store, which checks the lease of the sync's job at each write.
            remote: The remote with its progress so far.
            access: The address with its credentials.
            settings: The settings of the server.

        Returns:
            The remote with its progress.

        Raises:
            Unavailable: if the remote cannot be reached or refuses, or changes too fast.
            Forbidden: if it requires other credentials.
            Conflict: if both sides changed the same lines, or the folder holds another memory.
            Invalid: if the remote's commits cannot be pulled.
            LeaseLost: if the sync's job was cancelled or taken over.
        """
        user = await store.read(lambda tx: owner_of(tx, remote))
        sync = _GitSync(
            store,
            settings.data_dir,
            remote,
            user=user,
            address=_address(access, settings),
            marker=self.marker(access.address),
        )
        return await until_settled(sync.attempt)


def _address(access: Access, settings: Settings) -> GitAddress:
    return GitAddress(
        access.address,
        access.username or "git",
        access.password,
        allow_private=settings.allow_private_remotes,
        folders=settings.folders_of_remotes,
    )


class _GitSync:
    """One sync of a memory with its remote."""

    def __init__(
        self,
        store: Store,
        data_dir: Path,
        remote: Remote,
        *,
        user: User,
        address: GitAddress,
        marker: FolderMarker | None = None,
    ) -> None:
        self._store = store
        self._data_dir = data_dir
        self._remote = remote
        self._address = address
        self._marker = marker
        self._chain_id = remote.chain_id
        self._scope = Scope(remote.organization_id)
        self._owner = Actor("user", user.id, user.name)

    async def attempt(self) -> Remote:
        """Pull, then push. Raises RemoteMoved or Stale after another write."""
        path = await refreshed(self._store, self._data_dir, self._chain_id)
        tip = await self._store.read(lambda tx: history.tip(tx, self._chain_id))
        remote_branches = await asyncio.to_thread(transport.branches, self._address)
        if self._marker:
            await asyncio.to_thread(self._marker.claim, self._chain_id)
        remote_tip = remote_branches.get(BRANCH)
        rewritten_ids = await self._store.read(
            lambda tx: rewriting.rewritten_ids(tx, self._chain_id)
        )
        try:
            if (
                remote_tip
                and remote_tip != tip
                # If the remote has the history from before a rewriting, replace it instead of
                # pulling it.
                and remote_tip not in rewritten_ids
                and not await asyncio.to_thread(_has, path, remote_tip)
            ):
                await self._pull(path, remote_tip, tip)
                raise RemoteMoved  # the next attempt pushes the merge
            await self._push(path, remote_branches, tip)
            if self._remote.seen and bytes.fromhex(self._remote.seen) in rewritten_ids:
                await asyncio.to_thread(transport.drop_unreachable, self._address)
        except Conflict:
            if tip is not None:
                await self._move(path, remote_branches, {CONFLICT_BRANCH: tip})
            raise
        number = await self._store.read(
            lambda tx: history.number_of(tx, self._chain_id, tip) if tip else 0
        )
        return replace(
            self._remote, followed=number or 0, seen=tip.hex() if tip else None, last_error=None
        )

    async def _pull(self, path: Path, remote_tip: bytes, tip: bytes | None) -> None:
        """Turn the remote's commits into versions.

        If the memory has new versions too, both sides are merged.
        """
        pack = await asyncio.to_thread(transport.fetch, self._address, remote_tip, path)
        now = await self._store.read(lambda tx: blocks.of_user(tx, self._scope, self._owner.id))
        with closing(open_repository(path)) as repository:
            find = partial(find_object, repository)
            push = Push(
                await offload(partial(read_pack, pack, find), MOST_BYTES),
                find,
                {block.label: block.limit for block in now},
            )
            parents = await asyncio.to_thread(known_parents, push, remote_tip)
            base = await self._store.read(
                lambda tx: max(
                    parents,
                    key=lambda id: history.number_of(tx, self._chain_id, id) or 0,
                    default=None,
                )
            )

            new = await asyncio.to_thread(push.new_commits, remote_tip)
            new_ids = [commit.id for commit in new]
            await self._store.read(lambda tx: require_not_rewritten(tx, self._chain_id, new_ids))
            author = await self._store.read(
                lambda tx: CommitAuthors(tx, self._scope, self._owner).only(
                    commit.author for commit in new
                )
            )

            def plan() -> Adoption:
                if tip is None or tip in parents:
                    return push.adoption(tip, remote_tip)
                return merged(
                    push,
                    base,
                    tip=tip,
                    remote_tip=remote_tip,
                    author=author,
                    now=self._store.clock.now(),
                )

            adoption = await offload(plan, MOST_BYTES)
        metadata = ChangeMetadata(self._owner)
        await self._store.write(
            lambda tx: adopt(
                tx, self._scope, self._chain_id, adoption, metadata, describe=self._described
            )
        )

    def _described(self, tx: Transaction, chain: Chain) -> Describe:
        """Return a function that returns the metadata of a pulled commit.

        The author and message are those of the commit, or of a proposal that was merged at the
        remote.
        """
        authors = CommitAuthors(tx, self._scope, self._owner)
        merged = {branch.commit: branch.proposal for branch in open_branches(tx, chain.id)}

        def metadata(commit: Commit) -> ChangeMetadata:
            proposal = merged.get(commit.id)
            if proposal is None:
                return authors.metadata(authors.of(*commit.author), commit.message)
            return approval.metadata_of(proposal, self._owner)

        return metadata

    async def _push(self, path: Path, remote_branches: Refs, tip: bytes | None) -> None:
        waiting = await self._store.read(lambda tx: open_branches(tx, self._chain_id))
        if await self._store.read(
            lambda tx: any(
                git_objects.pushed(tx, self._chain_id, branch.commit) for branch in waiting
            )
        ):
            await self._store.write(lambda tx: approve_merged(tx, self._chain_id, self._owner))
            waiting = await self._store.read(lambda tx: open_branches(tx, self._chain_id))
        objects_by_branch = {branch.name: branch.objects for branch in waiting}
        if self._remote.options.get(SHOWS_TOML):
            folder = self._data_dir / schemas.FOLDER
            objects_by_branch[TOML_BRANCH] = await self._store.read(
                lambda tx: toml_commit(tx, self._scope, self._chain_id, self._owner, folder)
            )
        targets: dict[bytes, bytes | None] = {
            name: None
            for name in remote_branches
            if name.startswith(PREFIX) or name == CONFLICT_BRANCH
        }
        targets |= {name: objects[-1].id for name, objects in objects_by_branch.items()}
        if tip is not None:
            targets[BRANCH] = tip
        await self._move(path, remote_branches, targets, objects_by_branch)

    async def _move(
        self,
        path: Path,
        remote_branches: Refs,
        targets: Mapping[bytes, bytes | None],
        objects_by_branch: Mapping[bytes, Collection[GitObject]] | None = None,
    ) -> None:
        """Move the remote's branches to these commits.

        `objects_by_branch` has the objects of commits that are not in the local repository.
        """
        changed = {name: id for name, id in targets.items() if remote_branches.get(name) != id}
        if not changed:
            return
        extra = {
            git_object.id: git_object
            for name in changed
            for git_object in (objects_by_branch or {}).get(name, ())
        }
        await require_lease(self._store)
        await asyncio.to_thread(
            transport.push, self._address, path, remote_branches, changed, list(extra.values())
        )


def _has(path: Path, commit: bytes) -> bool:
    with closing(open_repository(path)) as repository:
        return commit.hex().encode() in repository.object_store  # type: ignore[operator]


class ProposalBranch(NamedTuple):
    """A proposal as a branch.

    The last of its objects is the commit.
    """

    proposal: Proposal
    name: bytes
    objects: tuple[GitObject, ...]

    @property
    def commit(self) -> bytes:
        return self.objects[-1].id


def open_branches(tx: Transaction, chain_id: str) -> list[ProposalBranch]:
    return [_branch(tx, proposal) for proposal in proposals.waiting(tx, chain_id)]


def approve_merged(tx: Transaction, chain_id: str, by: Actor) -> None:
    """Approve the proposals whose commits the owner merged at the remote.

    Args:
        tx: The transaction.
        chain_id: The chain.
        by: The owner, who becomes the approver.
    """
    chain = versions.lock(tx, chain_id)
    for branch in open_branches(tx, chain_id) if chain else ():
        if not git_objects.pushed(tx, chain_id, branch.commit):
            continue
        now = tx.clock.now()
        note = "Merged at a remote"
        approved = replace(
            branch.proposal, status="approved", resolved_at=now, resolved_by=by.id, note=note
        )
        proposals.settle(tx, replace(approved, result=chain.head if chain else None))


def _branch(tx: Transaction, proposal: Proposal) -> ProposalBranch:
    base = proposal.base or git_objects.head_at(tx, proposal.chain_id, proposal.created_at)
    if base:
        number = history.number_of(tx, proposal.chain_id, base) or 0
    else:
        number = 0
    files = dict(history.begin(tx, proposal.chain_id, number).files)
    files.pop(proposal.label, None)
    objects: list[GitObject] = []
    if proposal.value is not None:
        objects.append(git_object("blob", proposal.value.encode()))
        files[proposal.new_label or proposal.label] = blob_id(proposal.value)
    tree = tree_of(files)
    objects += [GitObject("tree", id, body) for id, body in tree.bodies.items()]
    parents = (base,) if base else ()
    body = commit_body(
        tree.id, parents, signature(proposal.author), proposal.created_at, _message(proposal)
    )
    objects.append(git_object("commit", body))
    # Some characters of labels are not allowed in names of branches.
    parts = [
        _NOT_IN_REFS.sub("-", part).strip(".").removesuffix(".lock") or "-"
        for part in proposal.label.split("/")
    ]
    name = PREFIX + "/".join([*parts, proposal.id]).encode()
    return ProposalBranch(proposal, name, tuple(objects))


def _message(proposal: Proposal) -> str:
    lines = [proposal.reasoning or f"Edit {proposal.label}", "", f"Proposal: {proposal.id}"]
    if proposal.confidence is not None:
        lines.append(f"Confidence: {proposal.confidence:g}")
    if proposal.step_id:
        lines.append(f"Step: {proposal.step_id}")
    return "\n".join(lines) + "\n"


def toml_commit(
    tx: Transaction, scope: Scope, chain_id: str, owner: Actor, schema_folder: Path
) -> tuple[GitObject, ...]:
    """Return the objects of the branch's commit; the commit comes last.

    The same memory always gives the same commit.

    Args:
        tx: The transaction.
        scope: The scope that reads the memory.
        chain_id: The user's chain.
        owner: The user. The name is written into the files of proposals.
        schema_folder: The folder with the schemas of blocks.
    """
    files = {
        f"blocks/{block.label}.toml": to_toml(
            block.label, block.value, _schema_of(block, schema_folder)
        ).encode()
        for block in blocks.of_user(tx, scope, owner.id)
    }
    waiting = proposals.waiting(tx, chain_id)
    files |= {
        f"pending_diffs/{proposal.id}.json": orjson.dumps(
            _diff(proposal, owner), option=orjson.OPT_INDENT_2
        )
        for proposal in waiting
    }
    newest = stored_history.page(tx, chain_id, limit=1)
    changed_at = max(
        [version.created_at for version in newest] + [proposal.created_at for proposal in waiting],
        default=0,
    )
    texts = {path: git_object("blob", content) for path, content in files.items()}
    tree = tree_of({path: text.id for path, text in texts.items()}, suffix="")
    trees = [GitObject("tree", id, body) for id, body in tree.bodies.items()]
    body = commit_body(tree.id, (), signature(_RICORDO), changed_at, "Memory as TOML\n")
    return (*texts.values(), *trees, git_object("commit", body))


def _schema_of(block: Block, folder: Path) -> BlockSchema | None:
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


REMOTES = GitRemotes()
