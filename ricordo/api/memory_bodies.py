"""What callers send about memory that has an owner: texts, settings, proposals and decisions."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from ricordo.api.bodies import MAX_COUNT, WholeBody
from ricordo.domain.block import Policy

_MOST_AT_ONCE = 500
_SHORT, _LONG = 255, 10_000
Reason = Annotated[str | None, Field(max_length=_LONG, description="Why, as its history will say.")]


class BlockSettings(WholeBody):
    """What a user's block has beside its text. A field that is left out stays; null takes it back."""

    title: str | None = Field(None, max_length=_SHORT)
    description: str | None = Field(None, max_length=_LONG)
    limit: int | None = Field(None, ge=0, le=MAX_COUNT, description="How many characters it may hold.")
    policy: Policy | None = Field(None, description="What becomes of an agent's edit.")
    schema_ref: str | None = Field(None, max_length=_SHORT, description="The block schema that it follows.")
    agent_id: str | None = Field(None, max_length=_SHORT, description="The only agent that sees it.")
    course: str | None = Field(None, max_length=_SHORT, description="The only course in which it is seen.")
    metadata: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        """What was sent, by the names of a Block."""
        sent = {name: getattr(self, name) for name in BlockSettings.model_fields if name in self.model_fields_set}
        return {name: value for name, value in sent.items() if value is not None or name in _CLEARED}


_CLEARED = ("title", "description", "schema_ref", "agent_id", "course")


class PutBody(BlockSettings):
    """A block's whole text, and what else of it shall change."""

    body: str
    message: Reason = None
    version: str | None = Field(
        None, max_length=40, description="The version it was edited from: what others wrote since is merged by lines."
    )


class ChangeBody(BlockSettings):
    """What shall change of a block beside its text; another `label` renames it."""

    label: str | None = None
    message: Reason = None


class RestoreBody(WholeBody):
    """Which version to go back to: the id from the history, or its first seven digits or more."""

    sha: str = Field(min_length=7, max_length=40)
    message: Reason = None


class ProposeBody(WholeBody):
    """A change to be proposed: what stands there, what shall stand there instead, and why."""

    old_string: str = Field(description="What is there now, word for word. Empty: the new text is added at the end.")
    new_string: str
    reasoning: str = Field(max_length=_LONG)
    confidence: float | None = Field(None, ge=0, le=1)
    replace_all: bool = False
    agent_id: str | None = Field(None, min_length=1, max_length=_SHORT, description="Any string that names the author.")


class ApproveBody(WholeBody):
    """A decision for a proposal; with `body` the owner's own text takes the place of what was proposed."""

    body: str | None = None


class RejectBody(WholeBody):
    """A decision against a proposal."""

    reason: str | None = Field(None, max_length=_LONG)


class BulkBody(RejectBody):
    """Which proposals are meant: those with these ids, or all that wait."""

    ids: list[str] | None = Field(None, min_length=1, max_length=_MOST_AT_ONCE)
    all: bool = False

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if bool(self.ids) == self.all:
            raise ValueError('say which proposals: either "ids" or "all": true')
        return self
