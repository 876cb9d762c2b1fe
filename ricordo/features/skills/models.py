"""Models of the routes of skills."""

from typing import Annotated

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from ricordo.api.models.base import From, RequestModel, ResponseModel, Timestamp, VersionId
from ricordo.api.models.memory import ProposalResponse
from ricordo.domain.block import Policy
from ricordo.domain.text import Json
from ricordo.features.skills.service import SkillOwner, StoredSkill

_Text = Annotated[str, Field(max_length=1_000_000)]
_Message = Annotated[str | None, Field(max_length=4_000)]


class PutSkillRequest(RequestModel):
    """A skill to store. `files` are the other files, by path below the skill's folder."""

    content: _Text = Field(description="The text of SKILL.md, with its front matter.")
    files: dict[str, _Text] = Field(default_factory=dict, max_length=1000)
    message: _Message = None
    version: str | None = Field(
        None,
        min_length=7,
        max_length=40,
        description="The version from which the text was edited. Later changes are merged by lines.",
    )
    keeps_hidden_text: bool = Field(
        False, description="Store invisible characters; by default they are refused."
    )


class SkillPolicyRequest(RequestModel):
    """The policy for agents' changes of a skill."""

    policy: Policy


class SkillZipForm(BaseModel):
    """A zip file of one skill."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile = Field(description="A zip file with SKILL.md, or with its folder.")
    keeps_hidden_text: bool = False


class SkillSummaryResponse(ResponseModel):
    """A skill in a list.

    `problem` is the reason why agents do not get the skill; null if they get it. A list checks only
    the front matter. The routes of the skill's block have its history, blame and comparisons.
    """

    name: str
    description: str
    owner_kind: str
    owner_id: str
    block_id: Annotated[str, From("block.id")]
    label: Annotated[str, From("block.label")]
    version: Annotated[VersionId | None, From("block.head")]
    policy: Annotated[Policy, From("block.rule")]
    agent_id: Annotated[str | None, From("block.agent_id")]
    is_untrusted: Annotated[bool, From("block.is_untrusted")]
    problem: str | None
    pending: Annotated[int, From("waiting")]
    created_at: Annotated[Timestamp, From("block.created_at")]
    updated_at: Annotated[Timestamp, From("block.updated_at")]

    @classmethod
    def from_skill(cls, owner: SkillOwner, skill: StoredSkill) -> Json:
        """Return the skill of this owner."""
        return cls.of(skill, owner_kind=owner.kind, owner_id=owner.id)


class SkillResponse(SkillSummaryResponse):
    """A skill with its files. `content` is the text of SKILL.md."""

    content: str
    files: dict[str, str]
    license: str | None
    compatibility: str | None
    metadata: dict[str, str]
    allowed_tools: str | None
    has_hidden_text: Annotated[bool, From("block.has_hidden_text")]

    @classmethod
    def from_skill(cls, owner: SkillOwner, skill: StoredSkill) -> Json:
        """Return the skill of this owner, with its files."""
        front = skill.front
        return cls.of(
            skill,
            owner_kind=owner.kind,
            owner_id=owner.id,
            files=dict(skill.files or {}),
            license=front.license if front else None,
            compatibility=front.compatibility if front else None,
            metadata=dict(front.metadata) if front else {},
            allowed_tools=front.allowed_tools if front else None,
        )


class SkillOutcomeResponse(ResponseModel):
    """A skill after a write. If the caller may only propose, it has the waiting proposal.

    `skill` is null if there is none.
    """

    skill: SkillResponse | None
    proposal: ProposalResponse | None
