"""Export and restore a user's facts, as a file of the memory archive."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from ricordo.domain.clock import to_micros
from ricordo.domain.egress import LABEL, NOBODY_AT_ALL, shared_label
from ricordo.domain.scope import Scope, User
from ricordo.domain.text import Json
from ricordo.errors import Conflict
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.queries import FactFilter
from ricordo.features.knowledge.facts.records import (
    USER,
    Evidence,
    FactKind,
    FactSource,
    FactState,
    Precision,
    Relation,
    UserFact,
)
from ricordo.features.knowledge.facts.routes import responses_of
from ricordo.plugins import UserFile
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_NAME = "facts.jsonl"
_PORTION = 500
_LONGEST = 10_000


class _EvidenceRecord(BaseModel):
    message_id: str = Field(max_length=_LONGEST)
    quote: str = Field(max_length=_LONGEST)


class FactRecord(BaseModel):
    """A fact in an archive: the fields of the API, and the user who decided on it."""

    model_config = ConfigDict(extra="ignore")
    # A fact in an unknown state stays in the history, and is not shown to models.
    later_words: ClassVar[Mapping[str, Any]] = {
        "kind": "who",
        "state": "ended",
        "relation": None,
        "precision": None,
        "source": "model",
        "egress": NOBODY_AT_ALL,
    }

    id: str = Field(max_length=_LONGEST)
    sentence: str = Field(max_length=_LONGEST)
    subject: str = Field(max_length=_LONGEST)
    kind: FactKind
    slot: str = Field(max_length=_LONGEST)
    value: str = Field(max_length=_LONGEST)
    state: FactState
    relation: Relation | None = None
    replaces_id: str | None = None
    replacement_id: str | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    precision: Precision | None = None
    holds_from: datetime
    holds_until: datetime | None = None
    evidence: list[_EvidenceRecord]
    confidence: float | None = None
    source: FactSource
    agent_id: str | None = None
    conversation_id: str | None = None
    said_at: datetime
    created_at: datetime
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    egress: str | None = Field(None, max_length=4000, pattern=LABEL)

    def fact(self, user: User) -> UserFact:
        """Return the record as a fact of this user."""
        return UserFact(
            id=self.id,
            organization_id=user.organization_id,
            user_id=user.id,
            sentence=self.sentence,
            kind=self.kind,
            source=self.source,
            state=self.state,
            said_at=to_micros(self.said_at),
            holds_from=to_micros(self.holds_from),
            created_at=to_micros(self.created_at),
            subject=USER if self.subject == "user" else self.subject,
            slot=self.slot,
            value=self.value,
            agent_id=self.agent_id,
            conversation_id=self.conversation_id,
            starts_at=_micros(self.starts_at),
            ends_at=_micros(self.ends_at),
            precision=self.precision,
            evidence=tuple(Evidence(piece.message_id, piece.quote) for piece in self.evidence),
            confidence=self.confidence,
            holds_until=_micros(self.holds_until),
            relation=self.relation,
            replaces_id=self.replaces_id,
            replacement_id=self.replacement_id,
            resolved_at=_micros(self.resolved_at),
            resolved_by=self.resolved_by,
            egress=self.egress,
        )


def read_facts(
    tx: Transaction, scope: Scope, user_id: str, after: str | None
) -> tuple[Sequence[Json], str | None]:
    """Return the next facts of the user, oldest first, and the id of the last.

    Args:
        tx: The transaction.
        scope: The caller, who may read the user's memory.
        user_id: The user.
        after: The id that the previous call returned; None at the start.

    Returns:
        Records for `FactRecord`, and the next `after`; None at the end.
    """
    page = Page(limit=_PORTION, after=after, order="asc")
    facts = queries.page(tx, scope, user_id, page, FactFilter())
    records = [
        {
            **{name: field for name, field in response.items() if name != "user_id"},
            "resolved_by": fact.resolved_by,
            **({"egress": fact.egress} if fact.egress else {}),
        }
        for fact, response in zip(facts, responses_of(tx, facts), strict=True)
    ]
    return records, facts[-1].id if facts else None


def store_facts(tx: Transaction, user: User, records: Iterable[FactRecord]) -> int:
    """Store the facts of an archive as this user's facts, and return their number.

    Args:
        tx: The transaction.
        user: The user, who has no facts yet.
        records: The records of the archive; they are not trusted.

    Raises:
        Conflict: if this server has one of the facts.
    """
    facts = [record.fact(user) for record in records]
    if queries.by_ids(tx, [fact.id for fact in facts]):
        raise Conflict(
            "This server has facts of this archive already, so another user here has them. Forget "
            "that user first, or restore on another server."
        )
    queries.insert(tx, *facts)
    _restore_policies(tx, user, {fact.kind for fact in facts})
    return len(facts)


def _restore_policies(tx: Transaction, user: User, kinds: Iterable[FactKind]) -> None:
    """Give each kind the egress policy that all of its restored facts have.

    An archive has the labels of facts, and not the policies of kinds.
    """
    for kind in kinds:
        if label := shared_label(queries.fact_labels(tx, user.id, kind)):
            queries.set_kind_label(tx, user.organization_id, user.id, kind, label)


FILE = UserFile(_NAME, read_facts, FactRecord, store_facts)


def _micros(time: datetime | None) -> int | None:
    if time is None:
        return None
    return to_micros(time)
