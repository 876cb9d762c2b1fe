"""Request and response models of facts."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ricordo.api.models.base import From, RequestModel, ResponseModel, Timestamp
from ricordo.domain.clock import stamp
from ricordo.domain.egress import MOST_NAMES
from ricordo.domain.text import Json
from ricordo.features.knowledge.facts.options import FactPolicy
from ricordo.features.knowledge.facts.records import (
    FactKind,
    FactSource,
    FactState,
    Precision,
    Relation,
    UserFact,
)
from ricordo.features.knowledge.facts.wording import change_of, text_of

_OptionalTime = Annotated[datetime | None, From(convert=lambda time: time and stamp(time))]


class EvidenceResponse(ResponseModel):
    """The part of a message on which a fact is based."""

    message_id: str
    quote: str


class FactResponse(ResponseModel):
    """A fact about a user, with its evidence.

    `text` is the sentence for prompts; for an ended fact it includes the end. `change` is the
    sentence that a proposed fact would replace. `starts_at` and `ends_at` are the time that the
    sentence names; `holds_from` and `holds_until` are the time for which the fact holds.
    """

    id: str
    user_id: str
    sentence: str
    text: str
    subject: str
    kind: FactKind
    slot: str
    value: str
    state: FactState
    change: str | None
    relation: Relation | None
    replaces_id: str | None
    replacement_id: str | None
    starts_at: _OptionalTime
    ends_at: _OptionalTime
    precision: Precision | None
    holds_from: Timestamp
    holds_until: _OptionalTime
    evidence: list[EvidenceResponse]
    confidence: float | None
    source: FactSource
    agent_id: str | None
    conversation_id: str | None
    said_at: Timestamp
    created_at: Timestamp
    resolved_at: _OptionalTime

    @classmethod
    def from_fact(cls, fact: UserFact, replaced: UserFact | None = None) -> Json:
        """Return the response for a fact.

        Args:
            fact: The fact.
            replaced: The fact that a proposed one would replace; None: no `change` is shown.
        """
        return cls.of(
            fact,
            text=text_of(fact),
            change=change_of(fact, replaced),
            subject=fact.subject or "user",
            evidence=[EvidenceResponse.of(piece) for piece in fact.evidence],
        )


class FactRequest(RequestModel):
    """A fact that its user writes."""

    sentence: str = Field(min_length=1, max_length=400)
    kind: FactKind | None = None


class FactChangeRequest(RequestModel):
    """New values of a fact; a missing field keeps the old one.

    Null in `holds_until` removes the end.
    """

    sentence: str | None = Field(None, min_length=1, max_length=400)
    kind: FactKind | None = None
    holds_from: datetime | None = None
    holds_until: datetime | None = None


class FactEgressRequest(RequestModel):
    """The providers of models that may see facts of a kind."""

    kind: FactKind
    allowed: list[Annotated[str, Field(max_length=100)]] | None = Field(
        max_length=MOST_NAMES,
        description='Names of providers, or "local". An empty list allows none, null all.',
    )


class FactEgressResponse(ResponseModel):
    """The egress policy of a kind of facts. `allowed` is null without one."""

    kind: FactKind
    allowed: list[str] | None


FactRequest.take_back(FactResponse)
FactChangeRequest.take_back(FactResponse)


class FactPolicyRequest(RequestModel):
    """A choice of policy; null removes the choice."""

    policy: FactPolicy | None


class FactPolicyResponse(ResponseModel):
    """The policy in effect, and whether the user, the organization or the server chose it."""

    policy: FactPolicy
    chosen_by: Literal["user", "organization", "server"]


class ForgottenResponse(ResponseModel):
    """The number of deleted facts: the fact itself, and the older wordings that it replaced."""

    forgotten: int


class ProfileLineResponse(ResponseModel):
    """A line of a profile; its source is a fact, or a line of a block: `<block id>#<number>`."""

    section: str
    text: str
    source: Literal["fact", "block"]
    source_id: str
    message_ids: list[str]


class ProfileResponse(ResponseModel):
    """A profile of a user. `text` is for a prompt; `lines` has each line with its source."""

    user_id: str
    text: str
    tokens: int
    is_cut: bool
    lines: list[ProfileLineResponse]
