"""The faults of facts, for the audit of memory (`ricordo memory audit`)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from ricordo.domain.clock import DAY
from ricordo.domain.message import Message
from ricordo.domain.scope import Scope
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.comparison import relation_of
from ricordo.features.knowledge.facts.evidence import is_evidence, stands_in
from ricordo.features.knowledge.facts.records import FactDraft, UserFact
from ricordo.features.memory_care.audit.findings import Finding, Kind, short
from ricordo.features.memory_care.audit.hygiene import AuditedTexts, owner_of
from ricordo.features.memory_care.audit.service import junk_in
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction


def audit_facts(tx: Transaction, scope: Scope, user_id: str | None) -> AuditedTexts:
    """Audit the facts that now hold, of one user or of all users."""
    items: Counter[str] = Counter()
    findings: list[Finding] = []
    ids = [user_id] if user_id else queries.users_with_facts(tx, scope.organization_id)
    for id in ids:
        now = tx.clock.now()
        facts = [fact for fact in queries.of_states(tx, id, "current") if not fact.is_over(now)]
        waiting = {fact.replaces_id for fact in queries.of_states(tx, id, "proposed")}
        items[owner_of(id)] = len(facts)
        findings += _of_user(tx, facts, waiting)
    return AuditedTexts(items, findings)


def _of_user(
    tx: Transaction, facts: Sequence[UserFact], waiting: set[str | None]
) -> Iterator[Finding]:
    messages_by_id = _messages_of(tx, facts)
    by_time = sorted(facts, key=lambda fact: (fact.said_at, fact.id))
    drafts = [_as_draft(fact) for fact in by_time]
    for index, fact in enumerate(by_time):
        finding = partial(
            Finding,
            owner=owner_of(fact.user_id),
            place=fact.id,
            line=0,
            text=short(fact.sentence),
            source="fact",
        )
        for kind, reason in _faults(tx, fact, messages_by_id):
            yield finding(kind, reason=reason)
        relations = {relation_of(later, fact, facts) for later in drafts[index + 1 :]}
        if "same" in relations:
            yield finding("duplicate", reason="a later fact says the same")
        if "contradicts" in relations and fact.id not in waiting:
            yield finding("contradiction", reason="a later fact contradicts it, and both hold")


def _faults(
    tx: Transaction, fact: UserFact, messages_by_id: Mapping[str, Message]
) -> Iterator[tuple[Kind, str]]:
    if reason := junk_in(fact.sentence):
        yield "junk", reason
    if fact.source != "user" and not _is_supported(fact, messages_by_id):
        yield "unsupported", "no message of the user contains its quote"
    now = tx.clock.now()
    if fact.kind == "plan" and fact.ends_at is not None and fact.ends_at < now - DAY:
        yield "stale", "the time that it names has passed"


def _is_supported(fact: UserFact, messages_by_id: Mapping[str, Message]) -> bool:
    return any(
        piece.message_id in messages_by_id
        and is_evidence(messages_by_id[piece.message_id], fact.user_id)
        and stands_in(piece.quote, messages_by_id[piece.message_id])
        for piece in fact.evidence
    )


def _messages_of(tx: Transaction, facts: Sequence[UserFact]) -> dict[str, Message]:
    ids = sorted({piece.message_id for fact in facts for piece in fact.evidence})
    return {message.id: message for message in messages.by_ids(tx, ids)} if ids else {}


def _as_draft(fact: UserFact) -> FactDraft:
    return FactDraft(
        fact.sentence,
        fact.kind,
        fact.evidence,
        subject=fact.subject,
        slot=fact.slot,
        value=fact.value,
        time=fact.stated_time,
    )
