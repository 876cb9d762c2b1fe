"""Models of the part `ricordo` of an agent file, which check it on import."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from ricordo.api.models.base import MAX_COUNT, RequestPart, Tags
from ricordo.domain.clock import DAY, EARLIEST, LATEST
from ricordo.domain.egress import read_label
from ricordo.domain.message import Role
from ricordo.domain.text import Json
from ricordo.features.automation.schedules.models import ScheduleRequest

VERSION = 1
MOST_VERSIONS = 10_000
MOST_PROPOSALS = 1_000
# A margin of a day on both sides, since the time may be shown in any time zone.
Micros = Annotated[int, Field(strict=True, ge=EARLIEST + DAY, le=LATEST - DAY)]
# An invalid label allows no destination, so a damaged file gives no access.
EgressLabel = Annotated[str | None, BeforeValidator(read_label)]
_Label = Annotated[str, Field(max_length=255)]


class FileMessage(RequestPart):
    """A message, with its parts as they are stored."""

    id: str
    role: Role
    parts: list[Json]
    created_at: Micros
    otid: str | None = None
    name: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    model: str | None = None
    is_untrusted: bool = False
    egress: EgressLabel = None


class FilePassage(RequestPart):
    """A passage in an agent file."""

    text: str
    tags: Tags = Field([])
    metadata: Json = Field({})
    is_untrusted: bool = False
    created_at: Micros
    egress: EgressLabel = None


class FileArchive(RequestPart):
    """An archive in an agent file, with its passages."""

    id: str
    name: str
    description: str | None = None
    metadata: Json = Field({})
    passages: list[FilePassage] = Field([])


class FileModelSettings(RequestPart):
    """The model settings that a conversation overrides.

    The fields are those of `ModelSettings`. An omitted field keeps the agent's setting; null unsets
    it.
    """

    temperature: float | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)
    response_format: Json | None = None
    thinks_in_arguments: bool | None = None
    extra: Json = Field({})


class FileConversation(RequestPart):
    """A conversation in an agent file, with its settings and messages."""

    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: FileModelSettings = Field(default_factory=FileModelSettings)
    context_window: int | None = Field(None, ge=1, le=2**53)
    hidden: bool = False
    archived_at: Micros | None = None
    egress: EgressLabel = None
    in_context_message_ids: list[str] = Field([])
    messages: list[FileMessage] = Field([])


class _FileChange(RequestPart):
    label: _Label
    value: str | None
    author: str
    reason: str = ""
    created_at: Micros
    is_untrusted: bool = False


class FileVersion(_FileChange):
    """One version of one block.

    `value` is its text, or None if the block was deleted. The author is only a claim, `Name
    <id@ricordo>`.
    """

    id: str | None = Field(None, pattern="^[0-9a-f]{40}$")
    old_label: _Label | None = None


class FileProposal(_FileChange):
    """A change that waits for the owner.

    `base` is the id of the version that it changes; None if it creates the block.
    """

    base: str | None
    new_label: _Label | None = None
    description: str | None = None
    confidence: float | None = Field(None, ge=0, le=1)
    egress: EgressLabel = None


class FileMemory(RequestPart):
    """An agent's memory except for its blocks, which are in the file's list of blocks.

    It consists of the history, the proposals, the ids of detached blocks, and the labels of
    untrusted blocks. `versions_left_out` counts versions of histories that are too long for a file.
    """

    versions: list[FileVersion] = Field([], max_length=MOST_VERSIONS)
    versions_left_out: int = 0
    detached_block_ids: list[str] = Field([])
    untrusted: list[str] = Field([])
    proposals: list[FileProposal] = Field([], max_length=MOST_PROPOSALS)


class FileAgent(RequestPart):
    """The parts of an agent in the file that only Ricordo reads; other servers ignore them.

    `messages` and `egress` are the messages and the egress label of the exported conversation; an
    import puts them into the default one. `unread` has the unknown fields of an earlier file from
    which the agent was imported, by their path in that file.
    """

    messages: list[FileMessage] | None = None
    egress: EgressLabel = None
    archives: list[FileArchive] = Field([])
    conversations: list[FileConversation] = Field([])
    memory: FileMemory | None = None
    schedules: list[ScheduleRequest] = Field([])
    unread: Json = Field({})
