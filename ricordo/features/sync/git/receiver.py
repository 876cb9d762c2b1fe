"""A push, from its bytes to versions or proposals.

Each branch is accepted as a whole, or refused with messages for the sender. `main` is the memory
itself; `propose/<any name>` makes a proposal for each block that the commit changes. Other branches
are refused.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import NamedTuple

from dulwich.errors import GitProtocolError, HangupException
from dulwich.protocol import (
    SIDE_BAND_CHANNEL_DATA,
    SIDE_BAND_CHANNEL_PROGRESS,
    ZERO_SHA,
    Protocol,
    pkt_line,
    pkt_seq,
)

from ricordo.domain.authors import author_of
from ricordo.domain.block import Block, Chain
from ricordo.domain.git_objects import path_of
from ricordo.domain.scope import Scope
from ricordo.domain.text import is_normal_name, is_normal_text
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound, RicordoError, Stale
from ricordo.features.sync.git import history
from ricordo.features.sync.git.adoption import Describe, adopt
from ricordo.features.sync.git.objects import MOST_BYTES, Commit, Lacking, read_pack
from ricordo.features.sync.git.push import EntryBudget, Push, Refused
from ricordo.features.sync.git.repository import (
    BRANCH,
    find_object,
    open_repository,
    rebuilt_if_damaged,
    refreshed,
)
from ricordo.memory.commit_authors import CommitAuthors
from ricordo.memory.proposals import ProposalDraft, Unchanged, expiry_of, propose
from ricordo.memory.text import merge_lines
from ricordo.offload import offload
from ricordo.settings import Settings
from ricordo.storage import blocks, users
from ricordo.storage.engine.store import Store, Transaction
from ricordo.storage.versions import Change

PROPOSE = b"refs/heads/propose/"
FLUSH = pkt_line(None)
_CAPABILITIES = (
    b"report-status side-band-64k delete-refs ofs-delta object-format=sha1 agent=ricordo"
)
_HEX = frozenset(b"0123456789abcdef")
_MOST_COMMANDS = 100
_UNREADABLE = "The push cannot be read. Push with git 1.7 or newer."
_FETCH = "Fetch it before you commit again; lines end with LF here, and letters are composed (NFC)."
_STALE = "The memory changed since you fetched it. Fetch and merge first, then push again."


class PushCommand(NamedTuple):
    """A push's request for one branch: move it from one commit to another.

    `old` is None for a new branch. `new` is None if the branch is to be deleted.
    """

    old: bytes | None
    new: bytes | None
    branch: bytes


class PushRequest(NamedTuple):
    """A push as it was sent: its commands, the client's capabilities, and the pack."""

    commands: tuple[PushCommand, ...]
    capabilities: frozenset[bytes]
    pack: bytes


class PushOutcome(NamedTuple):
    """The outcome of a command: the reason if it was refused, else None.

    `messages` are sentences for the sender.
    """

    branch: bytes
    refusal: str | None = None
    messages: tuple[str, ...] = ()


def push_advertisement(tip: bytes | None) -> bytes:
    """Return the answer before a push: the branch with its commit, and the capabilities.

    Args:
        tip: The id of the chain's last commit (20 bytes); None without versions.
    """
    if tip:
        ref = tip.hex().encode() + b" " + BRANCH
    else:
        ref = ZERO_SHA + b" capabilities^{}"
    return pkt_seq(b"# service=git-receive-pack\n") + pkt_seq(ref + b"\0" + _CAPABILITIES + b"\n")


def read_push(body: bytes) -> PushRequest:
    commands: list[PushCommand] = []
    capabilities: frozenset[bytes] = frozenset()
    stream = BytesIO(body)
    protocol = Protocol(stream.read, stream.write)
    try:
        while (text := protocol.read_pkt_line()) is not None:
            text, nul, rest = text.partition(b"\0")
            if nul:
                capabilities = frozenset(rest.split())
            if text.startswith(b"shallow "):
                continue  # ignored, since the server has all commits that a shallow clone lacks
            old, new, branch = [*text.rstrip(b"\n").split(b" ", 2), b"", b""][:3]
            if not branch.startswith(b"refs/") or b" " in branch:
                raise Invalid(_UNREADABLE)
            commands.append(PushCommand(_id(old), _id(new), branch))
            if len(commands) > _MOST_COMMANDS:
                raise Invalid(
                    f"This push names more than {_MOST_COMMANDS} branches. Push main alone."
                )
    except (GitProtocolError, HangupException):
        raise Invalid(_UNREADABLE) from None
    return PushRequest(tuple(commands), capabilities, stream.read())


def push_report(
    outcomes: Sequence[PushOutcome], capabilities: frozenset[bytes], fault: str | None = None
) -> bytes:
    """Return the answer to a push.

    Args:
        outcomes: The outcome of each command.
        capabilities: The capabilities that the client named. Messages are sent only in a side band.
        fault: The reason why the pack could not be read; None if it was read.
    """
    lines = [b"unpack " + (b"ok" if fault is None else _one_line(fault))]
    for branch, refusal, _ in outcomes:
        if refusal is None:
            lines.append(b"ok " + branch)
        else:
            lines.append(b"ng %s %s" % (branch, _one_line(refusal)))
    report = pkt_seq(*(line + b"\n" for line in lines))
    if b"side-band-64k" not in capabilities:
        return report
    answer = BytesIO()
    bands = Protocol(answer.read, answer.write)
    for sentence in (sentence for outcome in outcomes for sentence in outcome.messages):
        bands.write_sideband(SIDE_BAND_CHANNEL_PROGRESS, _one_line(sentence) + b"\n")
    bands.write_sideband(SIDE_BAND_CHANNEL_DATA, report)
    return answer.getvalue() + FLUSH


def _id(text: bytes) -> bytes | None:
    if len(text) != len(ZERO_SHA) or not _HEX.issuperset(text):
        raise Invalid(_UNREADABLE)
    if text == ZERO_SHA:
        return None
    return bytes.fromhex(text.decode())


def _one_line(sentence: str) -> bytes:
    return " ".join(sentence.split()).encode()[:1000]


@dataclass(frozen=True, slots=True)
class PushReceiver:
    """Applies the pushes that one credential makes to a user's chain."""

    store: Store
    settings: Settings
    scope: Scope
    chain: Chain

    async def receive(self, commands: Sequence[PushCommand], pack: bytes) -> list[PushOutcome]:
        """Apply a push.

        Args:
            commands: The commands, each of which is applied or refused separately.
            pack: The pack; empty if the push sends no objects.

        Raises:
            Invalid: if the pack cannot be read. Nothing was changed then.
            TooLong: if the pack is too large.
        """
        try:
            return await self._receive(commands, pack)
        except Lacking:
            # Our repository may have lost objects to which the push refers. Nothing was changed
            # yet, so rebuild it and try again.
            if not await rebuilt_if_damaged(self.store, self.settings.data_dir, self.chain.id):
                raise
        return await self._receive(commands, pack)

    async def _receive(self, commands: Sequence[PushCommand], pack: bytes) -> list[PushOutcome]:
        path = await refreshed(self.store, self.settings.data_dir, self.chain.id)
        tip = await self.store.read(lambda tx: history.tip(tx, self.chain.id))
        now = await self.store.read(self._blocks)
        limits = {label: block.limit for label, block in now.items()}
        outcomes: list[PushOutcome] = []
        with closing(open_repository(path)) as repository:
            find = partial(find_object, repository)
            budget = EntryBudget()
            # A small pack may unpack to a large size.
            new = await offload(partial(read_pack, pack, find), MOST_BYTES)
            for command in commands:
                if refusal := _refusal(command, tip):
                    outcomes.append(PushOutcome(command.branch, refusal))
                    continue
                try:
                    messages = await self._apply(command, Push(new, find, limits, budget))
                except RicordoError as error:
                    if isinstance(error, Lacking) and not outcomes:
                        raise
                    outcomes.append(_refused(command, error))
                else:
                    outcomes.append(PushOutcome(command.branch, messages=tuple(messages)))
        return outcomes

    def _blocks(self, tx: Transaction) -> dict[str, Block]:
        return {block.label: block for block in blocks.of_user(tx, self.scope, self.chain.owner_id)}

    async def _apply(self, command: PushCommand, push: Push) -> list[str]:
        """Apply a command, and return messages for the sender."""
        new = command.new or b""
        if command.branch != BRANCH:
            commit, changes = await offload(partial(_proposed, push, new), MOST_BYTES)
            return await self.store.write(lambda tx: self._propose(tx, commit, changes))
        metadata = ChangeMetadata(self.scope.actor)
        adoption = await offload(partial(push.adoption, command.old, new), MOST_BYTES)
        describe = partial(
            _described, metadata, adoption.main[-1].commit if adoption.main else None
        )
        await self.store.write(
            lambda tx: adopt(
                tx, self.scope, self.chain.id, adoption, metadata, describe=describe, is_push=True
            )
        )
        texts = {
            change.label: change.value or "" for _, changes in adoption.main for change in changes
        }
        messages = [f"{path_of(label)} is a new version now." for label in sorted(texts)]
        for label in sorted(texts):
            if not (is_normal_name(label) and is_normal_text(texts[label])):
                messages.append(
                    f"{path_of(label)} was brought into the normal form of text by one more "
                    f"version. {_FETCH}"
                )
        return messages

    def _propose(self, tx: Transaction, commit: Commit, changes: Sequence[Change]) -> list[str]:
        metadata = ChangeMetadata(self.scope.actor, commit.message.strip())
        chain = self.chain
        now = self._blocks(tx)
        messages = []
        for change in changes:
            label = change.old_label or change.label
            block = now.get(label)
            value = _value(change, block)
            if block is not None and metadata.policy_decision(block.rule, chain) == "refuse":
                raise Forbidden(
                    f"{path_of(label)}: this block is read-only; only its owner may change it."
                )
            if value is not None:
                (block or Block("", chain.organization_id, chain.id, label, "")).require_fits(value)
            new_label = change.label if change.old_label else None
            draft = ProposalDraft(chain.id, label, value, block, new_label)
            try:
                proposal = propose(tx, draft, metadata, expiry_of(self.settings))
            except Unchanged as answer:
                messages.append(f"{path_of(label)}: {answer}")
                continue
            if proposal.is_repeated:
                outcome = f"already waits for the owner, as {proposal.id}"
            else:
                outcome = f"is proposed as {proposal.id} and waits for the owner"
            messages.append(f"{path_of(label)} {outcome}.")
        return messages


def _described(
    pusher: ChangeMetadata, newest: Commit | None, tx: Transaction, chain: Chain
) -> Describe:
    """Return a function that returns the metadata of a pushed commit.

    The pusher's commits get the pusher's metadata; other commits get that of a remote author. If
    the pusher's user has no e-mail address, the committer address of the newest commit counts as
    the user's. An address of another user is never accepted.
    """
    scope = Scope(chain.organization_id)
    authors = CommitAuthors(tx, scope, pusher.author, is_pushed=True)
    user = users.find(tx, scope, pusher.author.id)
    if newest and not (user and user.email) and authors.user("", newest.committer) is None:
        is_unknown = author_of("", newest.committer) is None
        if is_unknown:
            authors.own_addresses = (newest.committer.lower(),)
        else:
            authors.own_addresses = ()
    if not pusher.is_owners_of(chain):  # the pusher may not name other authors
        return lambda commit: authors.metadata(pusher.author, commit.message)
    return lambda commit: authors.metadata(authors.of(*commit.author), commit.message)


def _refusal(command: PushCommand, tip: bytes | None) -> str | None:
    if command.branch != BRANCH and not command.branch.startswith(PROPOSE):
        if command.branch.startswith(b"refs/heads/"):
            kind = "branches"
        else:
            kind = "tags"
        return (
            f"Memory keeps no other {kind}. Push to main, or to propose/<any name> for the owner "
            "to decide."
        )
    if command.new is None:
        return (
            "A branch of memory cannot be deleted. Delete files and push that, or erase the user."
        )
    if command.branch == BRANCH and command.old != tip:
        return _STALE
    return None


def _proposed(push: Push, new: bytes) -> tuple[Commit, list[Change]]:
    """Return the last commit of a branch of proposals, and the changes in it.

    The changes are relative to the commit of the memory at which the branch started.
    """
    order = push.new_commits(new)
    if not order:
        raise Refused(["This branch has no new commits. Commit your proposal first."])
    # Follow first parents from the newest commit back to the first stored one.
    by_id = {commit.id: commit for commit in order}
    base: bytes | None = order[-1].id
    while base in by_id:
        base = next(iter(by_id[base].parents), None)
    if base is None:
        raise Refused(
            ["This branch shares no commit with the memory. Fetch, and start it from main."]
        )
    changes = push.changes(base, new)
    push.require_faultless(order)
    if not changes:
        raise Refused(["This branch changes no block. Commit your proposal first."])
    return order[-1], changes


def _value(change: Change, block: Block | None) -> str | None:
    """Return the proposed text, merged into the block's present text."""
    path = path_of(change.label)
    is_new = change.before is None and change.value is not None and change.old_label is None
    if is_new:
        if block is not None and block.value != change.value:
            raise Conflict(
                f"{path}: this block was created in the meantime. Fetch and merge first."
            )
        return change.value
    if block is None:
        raise NotFound(f"{path}: this block was deleted in the meantime. Fetch and merge first.")
    if change.value is None or change.before is None:
        return None
    if change.old_label is not None:
        return block.value
    merged = merge_lines(change.before, block.value, change.value)
    if merged is None:
        raise Stale(f"{path}: the same lines changed in the memory. Fetch and merge first.")
    return merged


def _refused(command: PushCommand, error: RicordoError) -> PushOutcome:
    if isinstance(error, Refused):
        messages = error.faults
    else:
        messages = (str(error),)
    if isinstance(error, Forbidden) and command.branch == BRANCH:
        messages = (*messages, "Push to propose/<any name> for the owner to decide.")
    return PushOutcome(command.branch, messages[0], messages)
