"""The records of a memory archive: one class for each file of JSON lines.

A class both writes and reads its records.

`docs/people/memory-archives.md` documents the format. Unknown fields are ignored, so
archives of later servers can be read.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from ricordo.api.models.memory import ProposalResponse, UserBlockResponse, VersionResponse
from ricordo.domain.block import Block, Policy
from ricordo.domain.clock import stamp, to_micros
from ricordo.domain.egress import LABEL, NOBODY_AT_ALL
from ricordo.domain.scope import Actor, ActorKind
from ricordo.domain.text import Json
from ricordo.domain.version import BlockVersion, ChangeMetadata, Proposal, ProposalStatus
from ricordo.storage.memory_archives import ChainObject, LoggedSettings, ObjectKind

FORMAT = "ricordo-memory"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
BLOCKS = "blocks.jsonl"
HISTORY = "history.jsonl"
PROPOSALS = "proposals.jsonl"
SETTINGS_LOG = "settings-log.jsonl"
GIT_OBJECTS = "git-objects.jsonl"
TEXTS = "blocks/"

_ID_BYTES = 20
_LONGEST_NAME = 1_000


def _git_id(digits: str) -> str:
    if len(digits) != 2 * _ID_BYTES or len(bytes.fromhex(digits)) != _ID_BYTES:
        raise ValueError("an id has 40 hex digits")
    return digits


_Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
_GitId = Annotated[str, AfterValidator(_git_id)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    later_words: ClassVar[Mapping[str, Any]] = {}
    """By field: the value that replaces a word which only a later server knows."""


class ArchivedUser(_Record):
    """The person to whom the memory belongs."""

    id: _Name
    identifier: _Name | None = None
    name: _Name


class Manifest(_Record):
    """The archive's format, its person, the tip of the history, and a SHA-256 for each file.

    `content` is a SHA-256 over the names and hashes of all files except the manifest. Equal
    memories have equal content hashes.
    """

    format: str
    version: int
    user: ArchivedUser
    head: _GitId | None
    made_at: AwareDatetime
    made_by: _Name
    files: dict[str, str]
    content: str


class VersionRecord(_Record):
    """One version of one block. `body` is its text; null if the version deleted the block."""

    number: int = Field(ge=1)
    sha: _GitId
    parents: list[_GitId]
    label: _Name
    old_label: _Name | None = None
    author_kind: ActorKind
    author_id: str
    author_name: str
    message: str
    timestamp: AwareDatetime
    is_untrusted: bool = False
    approved_by: _Name | None = None
    proposal_id: _Name | None = None
    run_id: _Name | None = None
    step_id: _Name | None = None
    body: str | None

    @staticmethod
    def of(version: BlockVersion, text: str | None) -> Json:
        """Return the record of a version: the fields of the API, the author's name and the text.

        Args:
            version: The version, with its author.
            text: The block's whole text in this version; None if the version deleted the block.
        """
        return {
            **VersionResponse.of(version),
            "author_name": version.author.name,
            "body": text,
        }

    @property
    def author(self) -> Actor:
        return Actor(self.author_kind, self.author_id, self.author_name)

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.sha)

    @property
    def parent_ids(self) -> tuple[bytes, ...]:
        return tuple(bytes.fromhex(parent) for parent in self.parents)

    @property
    def created_at(self) -> int:
        return to_micros(self.timestamp)

    def metadata(self) -> ChangeMetadata:
        return ChangeMetadata(
            self.author,
            self.message,
            run_id=self.run_id,
            step_id=self.step_id,
            is_untrusted=self.is_untrusted,
            approved_by=self.approved_by,
            proposal_id=self.proposal_id,
        )


class BlockRecord(_Record):
    """The settings of a block. Its text is in the record of its version."""

    # Under an unknown policy each change waits for approval. Under an unknown egress policy no
    # model sees the block.
    later_words = {"policy": "propose", "egress": NOBODY_AT_ALL}

    id: _Name
    label: _Name
    version: _GitId
    title: _Name | None = None
    description: str | None = None
    limit: int = Field(ge=0)
    policy: Policy
    read_only: bool = False
    hidden: bool = False
    shared: bool = False
    schema_ref: _Name | None = None
    agent_id: _Name | None = None
    course: _Name | None = None
    seen_as: _Name | None = None
    egress: Annotated[str, Field(max_length=4000, pattern=LABEL)] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    tags: list[_Name] = Field(default_factory=list)
    is_untrusted: bool = False
    writes: int = Field(1, ge=1)
    created_by: _Name | None = None
    updated_by: _Name | None = None
    created_at: AwareDatetime
    updated_at: AwareDatetime

    @staticmethod
    def of(block: Block, pending: int) -> Json:
        """Return the record of a block: the fields of the API except the text, and others.

        Args:
            block: The stored block.
            pending: The number of proposals that wait for its owner.
        """
        response = UserBlockResponse.of(block, pending=pending)
        return {
            **{name: field for name, field in response.items() if name != "body"},
            "policy": block.policy,
            "read_only": block.read_only,
            "hidden": block.hidden,
            "shared": block.shared,
            "tags": list(block.tags),
            "writes": block.version,
            "created_by": block.created_by,
            "egress": block.egress,
        }

    def block(self, organization_id: str, chain_id: str, text: str) -> Block:
        """Return the recorded block in this chain.

        Args:
            organization_id: The organization of the importing user.
            chain_id: The chain that receives the block.
            text: The block's text, from the record of the version in `version`.
        """
        return Block(
            id=self.id,
            organization_id=organization_id,
            chain_id=chain_id,
            label=self.label,
            value=text,
            description=self.description,
            limit=self.limit,
            read_only=self.read_only,
            policy=self.policy,
            hidden=self.hidden,
            metadata=self.metadata,
            tags=tuple(self.tags),
            version=self.writes,
            head=bytes.fromhex(self.version),
            title=self.title,
            schema_ref=self.schema_ref,
            agent_id=self.agent_id,
            course=self.course,
            is_untrusted=self.is_untrusted,
            created_by=self.created_by,
            updated_by=self.updated_by,
            created_at=to_micros(self.created_at),
            updated_at=to_micros(self.updated_at),
            shared=self.shared,
            seen_as=self.seen_as,
            egress=self.egress,
        )


class ProposalRecord(_Record):
    """A proposal with its texts and its outcome."""

    # A proposal with an unknown status must not become one that can be approved.
    later_words = {"status": "expired", "egress": NOBODY_AT_ALL}

    id: _Name
    label: _Name
    new_label: _Name | None = None
    status: ProposalStatus
    author_kind: ActorKind
    agent_id: str
    author_name: str
    reasoning: str
    confidence: float | None = None
    description: str | None = None
    base: _GitId | None = None
    base_body: str | None = None
    body: str | None = None
    is_untrusted: bool = False
    is_untold: bool = False
    run_id: _Name | None = None
    step_id: _Name | None = None
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    resolved_at: AwareDatetime | None = None
    resolved_by: _Name | None = None
    note: str | None = None
    version: _GitId | None = None
    superseded_by: _Name | None = None
    egress: Annotated[str, Field(max_length=4000, pattern=LABEL)] | None = None

    @staticmethod
    def of(proposal: Proposal) -> Json:
        """Return the record of a proposal: the fields of the API, and three more.

        Args:
            proposal: The stored proposal with its texts, of any status.
        """
        return {
            **ProposalResponse.of(proposal),
            "author_name": proposal.author.name,
            "is_untold": proposal.is_untold,
            "egress": proposal.egress,
        }

    def proposal(self, organization_id: str, chain_id: str) -> Proposal:
        """Return the recorded proposal in this chain.

        Args:
            organization_id: The organization of the importing user.
            chain_id: The chain that receives the proposal.
        """
        return Proposal(
            id=self.id,
            organization_id=organization_id,
            chain_id=chain_id,
            label=self.label,
            base=bytes.fromhex(self.base) if self.base else None,
            base_value=self.base_body,
            value=self.body,
            author=Actor(self.author_kind, self.agent_id, self.author_name),
            reasoning=self.reasoning,
            created_at=to_micros(self.created_at),
            confidence=self.confidence,
            new_label=self.new_label,
            description=self.description,
            status=self.status,
            run_id=self.run_id,
            step_id=self.step_id,
            is_untrusted=self.is_untrusted,
            expires_at=_micros(self.expires_at),
            resolved_at=_micros(self.resolved_at),
            resolved_by=self.resolved_by,
            note=self.note,
            result=bytes.fromhex(self.version) if self.version else None,
            superseded_by=self.superseded_by,
            is_untold=self.is_untold,
            egress=self.egress,
        )


class SettingsRecord(_Record):
    """A change of a block's settings, or a deletion with all settings of the block."""

    block_id: _Name
    changed: dict[str, Any]
    author_kind: ActorKind
    author_id: str
    author_name: str
    created_at: AwareDatetime
    deleted_label: _Name | None = None

    @staticmethod
    def of(logged: LoggedSettings) -> Json:
        """Return the record of a change of a block's settings.

        Args:
            logged: The stored change.
        """
        return {
            "block_id": logged.block_id,
            "changed": dict(logged.changed),
            "author_kind": logged.author.kind,
            "author_id": logged.author.id,
            "author_name": logged.author.name,
            "created_at": stamp(logged.created_at),
            "deleted_label": logged.deleted_label,
        }

    def logged(self) -> LoggedSettings:
        return LoggedSettings(
            block_id=self.block_id,
            changed=self.changed,
            author=Actor(self.author_kind, self.author_id, self.author_name),
            created_at=to_micros(self.created_at),
            deleted_label=self.deleted_label,
        )


class GitObjectRecord(_Record):
    """A pushed git object that cannot be computed from versions. Its body is in hex digits.

    The kind `forgotten` marks a version that was replaced when the history was rewritten. `id` is
    the old version's id, and `body` is the new version's id.
    """

    id: _GitId
    kind: ObjectKind
    body: Annotated[str, Field(pattern="^([0-9a-f]{2})*$")]

    @staticmethod
    def of(stored: ChainObject) -> Json:
        """Return the record of a pushed git object.

        Args:
            stored: The stored object; ids and bodies become hex digits.
        """
        return {"id": stored.id.hex(), "kind": stored.kind, "body": stored.body.hex()}

    def stored(self) -> ChainObject:
        return ChainObject(self.kind, bytes.fromhex(self.id), bytes.fromhex(self.body))


class ManifestBuilder:
    """Collects the hashes of an archive's files while they are written."""

    def __init__(self) -> None:
        self._hashes: dict[str, str] = {}

    def add(self, name: str, digest: str) -> None:
        """Add a file whose content was written.

        Args:
            name: The name of the file in the archive.
            digest: The SHA-256 of its content, in hex digits.
        """
        self._hashes[name] = digest

    def manifest(self, user: ArchivedUser, head: bytes | None, made_at: int, made_by: str) -> Json:
        """Return the manifest of the files that were added.

        Args:
            user: The person to whom the memory belongs.
            head: The id of the newest version as 20 bytes; None if there are no versions.
            made_at: The time of the export in microseconds.
            made_by: The program that wrote the archive, such as "Ricordo 1.0".
        """
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "user": user.model_dump(),
            "head": head.hex() if head else None,
            "made_at": stamp(made_at),
            "made_by": made_by,
            "files": self._hashes,
            "content": content_hash(self._hashes),
        }


def content_hash(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 over lines `<hash>  <name>`, sorted by name.

    They have the form that `sha256sum` prints.

    Args:
        hashes: The SHA-256 of each file, in hex digits, by its name.
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _micros(time: datetime | None) -> int | None:
    if time is None:
        return None
    return to_micros(time)
