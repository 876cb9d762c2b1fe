"""A user's blocks for programs, through any client of a server in this process or elsewhere.

The methods call the HTTP API with a client of `letta-client`, and have its rights. Refusals are the
client's errors, such as `letta_client.NotFoundError`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import quote

from ricordo.domain.block import Policy
from ricordo.domain.scope import ActorKind
from ricordo.domain.version import ProposalStatus

# `letta-client` is a separate package. Only methods of its client object are used here.
if TYPE_CHECKING:
    from letta_client import AsyncLetta, Letta

T = TypeVar("T")
Json = Mapping[str, Any]
ShownStatus = ProposalStatus | Literal["waiting", "all"]
TextFormat = Literal["markdown", "toml"]
_MEDIA_TYPES: Mapping[TextFormat, str] = {
    "markdown": "text/markdown",
    "toml": "application/toml",
}
_TIMES = ("updated_at", "created_at", "timestamp", "expires_at", "resolved_at")


@dataclass(frozen=True, slots=True)
class UserBlock:
    """A block of a user's memory, at its current version.

    Attributes:
        body: The text.
        version: The id of the version with this text; None before the first version.
        policy: Whether an agent's edit is applied, proposed or refused.
        pending: The number of proposals that wait for the user's decision.
        is_untrusted: True if the text comes from untrusted content, such as a tool or a document.
        proposal_id: The id of the proposal, if an edit was proposed instead of applied.
    """

    label: str
    title: str | None
    body: str
    version: str | None
    description: str | None
    policy: Policy
    pending: int
    is_untrusted: bool
    updated_at: datetime
    proposal_id: str | None


@dataclass(frozen=True, slots=True)
class BlockProposal:
    """A proposed change of a block, which waits for the user or is already decided.

    Attributes:
        base_body: The text before the change; None for a new block.
        body: The proposed text; None if the block would be deleted.
        diff: The unified diff from `base_body` to `body`.
        version: The id of the version that the approved proposal became.
        note: A sentence about the outcome.
    """

    id: str
    label: str
    status: ProposalStatus
    author: str
    author_kind: ActorKind
    reasoning: str
    confidence: float | None
    base_body: str | None
    body: str | None
    diff: str
    is_untrusted: bool
    created_at: datetime
    expires_at: datetime | None
    resolved_at: datetime | None
    resolved_by: str | None
    version: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class HistoryVersion:
    """A version of a block, with its author, time and reason.

    Attributes:
        sha: The version's id, which is also the id of its git commit.
        approved_by: The user who approved the proposal, or pushed or pulled another's commit.
        run_id: The run of the agent that wrote it.
    """

    sha: str
    message: str
    author: str
    author_kind: ActorKind
    timestamp: datetime
    label: str
    is_deleted: bool
    is_untrusted: bool
    approved_by: str | None
    proposal_id: str | None
    run_id: str | None


class UserBlocks:
    """The blocks of one user.

    Example:
        blocks = ricordo.memory.UserBlocks(client, "ada")
        for proposal in blocks.proposals():
            print(proposal.diff)
            blocks.approve(proposal)
    """

    def __init__(self, client: "Letta", user: str) -> None:
        """Prepare calls for this user, named by id or name."""
        self._client = client
        self._requests = _Requests(user)

    def read_all(self) -> list[UserBlock]:
        """Return the user's blocks by label."""
        return self._ask(self._requests.read_all())

    def read(self, label: str) -> UserBlock:
        """Return one block.

        Args:
            label: The block's label.
        """
        return self._ask(self._requests.read(label))

    def write(
        self,
        label: str,
        body: str,
        *,
        message: str | None = None,
        version: str | None = None,
        schema_ref: str | None = None,
    ) -> UserBlock | BlockProposal:
        """Write a block's text, and create the user and the block if they are new.

        Args:
            label: The block.
            body: Its whole text.
            message: The reason, shown in the history.
            version: The version from which the text was edited. Later changes are merged by lines.
            schema_ref: The block schema that the text follows from now on.

        Returns:
            The block; a proposal if the new block has to wait for the user's approval.
        """
        return self._ask(
            self._requests.write(
                label, body, message=message, version=version, schema_ref=schema_ref
            )
        )

    def read_as(self, label: str, format: TextFormat) -> str:
        """Return one block as Markdown with a front matter, or as TOML.

        Args:
            label: The block.
            format: The format of the text.
        """
        return self._ask(self._requests.read_as(label, format))

    def write_as(
        self, label: str, text: str, format: TextFormat, *, message: str | None = None
    ) -> UserBlock | BlockProposal:
        """Write a block from the text that `read_as` returned, after an edit.

        Args:
            label: The block.
            text: Markdown or TOML. A wrong line is refused with its number.
            format: The format of the text.
            message: The reason, shown in the history.
        """
        return self._ask(self._requests.write_as(label, text, format, message))

    def delete(self, label: str, *, message: str | None = None) -> None:
        """Delete a block; its history stays, and any version can be restored.

        If the block's policy requires it, the deletion is only proposed.

        Args:
            label: The block.
            message: The reason, shown in the history.
        """
        self._ask(self._requests.delete(label, message))

    def propose(
        self,
        label: str,
        new: str,
        *,
        old: str = "",
        reasoning: str,
        confidence: float | None = None,
        agent_id: str | None = None,
    ) -> BlockProposal:
        """Propose to replace a piece of a block; the user decides about it.

        Args:
            label: The block.
            new: The new piece of text.
            old: The current piece, word for word. Omit it for a new or an empty block.
            reasoning: The reason, which the user reads.
            confidence: From 0 to 1.
            agent_id: The author, if it is an agent.
        """
        return self._ask(
            self._requests.propose(
                label, new, old=old, reasoning=reasoning, confidence=confidence, agent_id=agent_id
            )
        )

    def proposals(
        self,
        label: str | None = None,
        *,
        status: ShownStatus = "waiting",
        limit: int = 50,
        after: str | None = None,
    ) -> list[BlockProposal]:
        """Return proposals for all blocks or for one, newest first.

        Args:
            label: Only proposals for this block.
            status: Only proposals with this status; `all` for any status.
            limit: The most proposals to return, up to 100.
            after: Only proposals that are listed after the proposal with this id.
        """
        return self._ask(self._requests.proposals(label, status=status, limit=limit, after=after))

    def approve(self, proposal: BlockProposal, *, body: str | None = None) -> BlockProposal:
        """Make the proposed text the block's next version.

        Args:
            proposal: The proposal.
            body: The user's own text, in place of the proposed one.
        """
        return self._ask(self._requests.approve(proposal, body))

    def reject(self, proposal: BlockProposal, *, reason: str | None = None) -> BlockProposal:
        """Leave the block as it is, and store the reason with the proposal.

        Args:
            proposal: The proposal.
            reason: The reason, which its agent reads.
        """
        return self._ask(self._requests.reject(proposal, reason))

    def history(
        self, label: str, *, limit: int = 50, before: str | None = None
    ) -> list[HistoryVersion]:
        """Return the block's versions, newest first, even after it was deleted.

        Args:
            label: The block.
            limit: The most versions to return, up to 1,000.
            before: Only versions older than the version with this id.
        """
        return self._ask(self._requests.history(label, limit=limit, before=before))

    def body_at(self, label: str, sha: str) -> str | None:
        """Return the block's text at a version; None if that version deleted the block.

        Args:
            label: The block.
            sha: The version's id, or its first digits (at least 7).
        """
        return self._ask(self._requests.body_at(label, sha))

    def restore(
        self, label: str, sha: str, *, message: str | None = None
    ) -> UserBlock | BlockProposal:
        """Make the block's text at a version its next version, even after a deletion.

        Args:
            label: The block.
            sha: The version's id, or its first digits (at least 7).
            message: The reason, shown in the history.

        Returns:
            The block; a proposal if a deleted block has to wait for the user's approval.
        """
        return self._ask(self._requests.restore(label, sha, message))

    def _ask(self, request: "_Request[T]") -> T:
        send = getattr(self._client, request.method)
        return request.read(send(request.path, cast_to=request.answer, **request.options()))


class AsyncUserBlocks:
    """The blocks of one user, for asynchronous programs; see `UserBlocks`."""

    def __init__(self, client: "AsyncLetta", user: str) -> None:
        """Prepare calls for this user, named by id or name."""
        self._client = client
        self._requests = _Requests(user)

    async def read_all(self) -> list[UserBlock]:
        """Return the user's blocks by label."""
        return await self._ask(self._requests.read_all())

    async def read(self, label: str) -> UserBlock:
        """Return one block.

        Args:
            label: The block's label.
        """
        return await self._ask(self._requests.read(label))

    async def write(
        self,
        label: str,
        body: str,
        *,
        message: str | None = None,
        version: str | None = None,
        schema_ref: str | None = None,
    ) -> UserBlock | BlockProposal:
        """Write a block's text, as `UserBlocks.write` does.

        Args:
            label: The block.
            body: Its whole text.
            message: The reason, shown in the history.
            version: The version from which the text was edited. Later changes are merged by lines.
            schema_ref: The block schema that the text follows from now on.

        Returns:
            The block; a proposal if the new block has to wait for the user's approval.
        """
        return await self._ask(
            self._requests.write(
                label, body, message=message, version=version, schema_ref=schema_ref
            )
        )

    async def read_as(self, label: str, format: TextFormat) -> str:
        """Return one block as Markdown with a front matter, or as TOML.

        Args:
            label: The block.
            format: The format of the text.
        """
        return await self._ask(self._requests.read_as(label, format))

    async def write_as(
        self, label: str, text: str, format: TextFormat, *, message: str | None = None
    ) -> UserBlock | BlockProposal:
        """Write a block from the text that `read_as` returned, after an edit.

        Args:
            label: The block.
            text: Markdown or TOML. A wrong line is refused with its number.
            format: The format of the text.
            message: The reason, shown in the history.
        """
        return await self._ask(self._requests.write_as(label, text, format, message))

    async def delete(self, label: str, *, message: str | None = None) -> None:
        """Delete a block; its history stays, and any version can be restored.

        If the block's policy requires it, the deletion is only proposed.

        Args:
            label: The block.
            message: The reason, shown in the history.
        """
        await self._ask(self._requests.delete(label, message))

    async def propose(
        self,
        label: str,
        new: str,
        *,
        old: str = "",
        reasoning: str,
        confidence: float | None = None,
        agent_id: str | None = None,
    ) -> BlockProposal:
        """Propose to replace a piece of a block, as `UserBlocks.propose` does.

        Args:
            label: The block.
            new: The new piece of text.
            old: The current piece, word for word. Omit it for a new or an empty block.
            reasoning: The reason, which the user reads.
            confidence: From 0 to 1.
            agent_id: The author, if it is an agent.
        """
        return await self._ask(
            self._requests.propose(
                label, new, old=old, reasoning=reasoning, confidence=confidence, agent_id=agent_id
            )
        )

    async def proposals(
        self,
        label: str | None = None,
        *,
        status: ShownStatus = "waiting",
        limit: int = 50,
        after: str | None = None,
    ) -> list[BlockProposal]:
        """Return proposals for all blocks or for one, newest first.

        Args:
            label: Only proposals for this block.
            status: Only proposals with this status; `all` for any status.
            limit: The most proposals to return, up to 100.
            after: Only proposals that are listed after the proposal with this id.
        """
        return await self._ask(
            self._requests.proposals(label, status=status, limit=limit, after=after)
        )

    async def approve(self, proposal: BlockProposal, *, body: str | None = None) -> BlockProposal:
        """Make the proposed text, or the user's own, the block's next version.

        Args:
            proposal: The proposal.
            body: The user's text, in place of the proposed one.
        """
        return await self._ask(self._requests.approve(proposal, body))

    async def reject(self, proposal: BlockProposal, *, reason: str | None = None) -> BlockProposal:
        """Leave the block as it is, and store the reason with the proposal.

        Args:
            proposal: The proposal.
            reason: The reason, which its agent reads.
        """
        return await self._ask(self._requests.reject(proposal, reason))

    async def history(
        self, label: str, *, limit: int = 50, before: str | None = None
    ) -> list[HistoryVersion]:
        """Return the block's versions, newest first, even after it was deleted.

        Args:
            label: The block.
            limit: The most versions to return, up to 1,000.
            before: Only versions older than the version with this id.
        """
        return await self._ask(self._requests.history(label, limit=limit, before=before))

    async def body_at(self, label: str, sha: str) -> str | None:
        """Return the block's text at a version; None if that version deleted the block.

        Args:
            label: The block.
            sha: The version's id, or its first digits (at least 7).
        """
        return await self._ask(self._requests.body_at(label, sha))

    async def restore(
        self, label: str, sha: str, *, message: str | None = None
    ) -> UserBlock | BlockProposal:
        """Make the block's text at a version its next version, even after a deletion.

        Args:
            label: The block.
            sha: The version's id, or its first digits (at least 7).
            message: The reason, shown in the history.

        Returns:
            The block; a proposal if a deleted block has to wait for the user's approval.
        """
        return await self._ask(self._requests.restore(label, sha, message))

    async def _ask(self, request: "_Request[T]") -> T:
        send = getattr(self._client, request.method)
        return request.read(await send(request.path, cast_to=request.answer, **request.options()))


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    """One request, and the function that reads its answer.

    `body` is sent as JSON. If `text` is set, it is sent instead, with its `media_type`. `answer` is
    the type of the answer, JSON or text.
    """

    method: Literal["get", "post", "put", "delete"]
    path: str
    read: Callable[[Any], T]
    body: Json | None = None
    query: Json | None = None
    text: str | None = None
    media_type: str = ""
    answer: type = object

    def options(self) -> dict[str, Any]:
        """Return the arguments for the client's method; fields that are None are left out."""
        arguments: dict[str, Any] = {}
        options: dict[str, Any] = {}
        if self.body is not None:
            arguments["body"] = _without_none(self.body)
        if self.text is not None:
            arguments["content"] = self.text.encode()
            options["headers"] = {"Content-Type": self.media_type}
        if self.query is not None:
            options["params"] = _without_none(self.query)
        return {**arguments, "options": options}


class _Requests:
    """The requests for one user's memory.

    The arguments of a method are those of the same method of `UserBlocks`.
    """

    def __init__(self, user: str) -> None:
        self._user = f"/users/{quote(user, safe='')}"

    def read_all(self) -> _Request[list[UserBlock]]:
        return _Request("get", f"{self._user}/blocks", _reader_of_all(UserBlock))

    def read(self, label: str) -> _Request[UserBlock]:
        return _Request("get", self._block(label), _reader_of(UserBlock))

    def write(
        self,
        label: str,
        body: str,
        *,
        message: str | None,
        version: str | None,
        schema_ref: str | None,
    ) -> _Request[UserBlock | BlockProposal]:
        fields = {"body": body, "message": message, "version": version, "schema_ref": schema_ref}
        return _Request("put", self._block(label), _written, body=fields)

    def read_as(self, label: str, format: TextFormat) -> _Request[str]:
        return _Request("get", self._block(label), str, query={"format": format}, answer=str)

    def write_as(
        self, label: str, text: str, format: TextFormat, message: str | None
    ) -> _Request[UserBlock | BlockProposal]:
        return _Request(
            "put",
            self._block(label),
            _written,
            query={"message": message},
            text=text,
            media_type=_MEDIA_TYPES[format],
        )

    def delete(self, label: str, message: str | None) -> _Request[None]:
        query = {"message": message}
        return _Request("delete", self._block(label), lambda _: None, query=query)

    def propose(
        self,
        label: str,
        new: str,
        *,
        old: str,
        reasoning: str,
        confidence: float | None,
        agent_id: str | None,
    ) -> _Request[BlockProposal]:
        body = {
            "old_string": old,
            "new_string": new,
            "reasoning": reasoning,
            "confidence": confidence,
            "agent_id": agent_id,
        }
        path = f"{self._block(label)}/propose"
        return _Request("post", path, _reader_of(BlockProposal), body=body)

    def proposals(
        self, label: str | None, *, status: ShownStatus, limit: int, after: str | None
    ) -> _Request[list[BlockProposal]]:
        query = {"status": status, "limit": limit, "after": after}
        path = f"{self._user if label is None else self._block(label)}/diffs"
        return _Request("get", path, _reader_of_all(BlockProposal), query=query)

    def approve(self, proposal: BlockProposal, body: str | None) -> _Request[BlockProposal]:
        return self._decide(proposal, "approve", {"body": body})

    def reject(self, proposal: BlockProposal, reason: str | None) -> _Request[BlockProposal]:
        return self._decide(proposal, "reject", {"reason": reason})

    def _decide(
        self, proposal: BlockProposal, decision: Literal["approve", "reject"], body: Json
    ) -> _Request[BlockProposal]:
        path = f"{self._block(proposal.label)}/diffs/{quote(proposal.id, safe='')}/{decision}"
        read = _reader_of(BlockProposal)
        return _Request("post", path, lambda decided: read(decided["proposal"]), body=body)

    def history(
        self, label: str, *, limit: int, before: str | None
    ) -> _Request[list[HistoryVersion]]:
        path = f"{self._block(label)}/history"
        query = {"limit": limit, "before": before}
        return _Request("get", path, _reader_of_all(HistoryVersion), query=query)

    def body_at(self, label: str, sha: str) -> _Request[str | None]:
        path = f"{self._block(label)}/versions/{quote(sha, safe='')}"
        return _Request("get", path, _body_of)

    def restore(
        self, label: str, sha: str, message: str | None
    ) -> _Request[UserBlock | BlockProposal]:
        path = f"{self._block(label)}/restore"
        body = {"sha": sha, "message": message}
        return _Request("post", path, _written, body=body)

    def _block(self, label: str) -> str:
        return f"{self._user}/blocks/{quote(label)}"


def _reader_of(kind: type[T]) -> Callable[[Json], T]:
    """Return a function that takes the fields of this class from a JSON object."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]

    def read(document: Json) -> T:
        values = {name: document[name] for name in names}
        for name in _TIMES:
            if values.get(name) is not None:
                values[name] = datetime.fromisoformat(values[name])
        return kind(**values)

    return read


def _reader_of_all(kind: type[T]) -> Callable[[list[Json]], list[T]]:
    read = _reader_of(kind)
    return lambda documents: [read(document) for document in documents]


def _written(document: Json) -> UserBlock | BlockProposal:
    """Read the answer to an edit that may create a block: the block, or its proposal (202)."""
    if "status" in document:
        return _reader_of(BlockProposal)(document)
    return _reader_of(UserBlock)(document)


def _body_of(document: Json) -> str | None:
    body: str | None = document["body"]
    return body


def _without_none(fields: Json) -> dict[str, Any]:
    return {name: field for name, field in fields.items() if field is not None}
