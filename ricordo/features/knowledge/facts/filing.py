"""Store drafts of facts as current facts, as proposals, or as evidence of known facts.

The facts from a range of messages are stored in one transaction with the mark of the last message
that was read. So each range is filed once, even after a kill. The transaction locks the user's row.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from ricordo.domain.clock import DAY
from ricordo.domain.ids import new_id
from ricordo.domain.message import Message
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Scope
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.comparison import relation_of
from ricordo.features.knowledge.facts.evidence import MOST_EVIDENCE, checked
from ricordo.features.knowledge.facts.options import FactPolicy
from ricordo.features.knowledge.facts.records import FactDraft, FactState, Relation, UserFact
from ricordo.features.knowledge.facts.times import holding
from ricordo.memory.declined import DECLINED_DAYS
from ricordo.memory.line_likeness import says_same
from ricordo.memory.unwanted import rules_of
from ricordo.storage import versions
from ricordo.storage.engine.store import Transaction

_LONGEST_SENTENCE = 400


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages of one user that were read for facts, in order, with the policy for these facts.

    `known_ids` are messages that were read before; a fact needs at least one new message.
    """

    organization_id: str
    user_id: str
    policy: FactPolicy
    messages: Sequence[Message]
    known_ids: Set[str] = frozenset()


@dataclass(slots=True)
class FilingReport:
    """The numbers of facts that were added, repeated and refused."""

    added: int = 0
    repeated: int = 0
    refused: int = 0


def file_drafts(tx: Transaction, reading: Reading, drafts: Iterable[FactDraft]) -> FilingReport:
    """Store the drafts that are supported by their messages.

    Args:
        tx: The transaction, which has locked the user.
        reading: The messages that were read, and the policy.
        drafts: The facts as they were read from these messages.
    """
    report = FilingReport()
    messages = {message.id: message for message in reading.messages}
    live = queries.of_states(tx, reading.user_id, "current", "proposed")
    rejected = _rejected_lately(tx, reading.user_id)
    scope = Scope(reading.organization_id)
    rules = rules_of(tx, versions.of_owner(tx, scope, "user", reading.user_id))
    for draft in drafts:
        supported = _supported(reading, draft)
        if supported is None or rules.refuse("", supported.sentence):
            report.refused += 1
            continue
        if _is_rejected(supported, rejected) or _holds_secret(supported):
            report.refused += 1
            continue
        said_at = max(messages[piece.message_id].created_at for piece in supported.evidence)
        if known := _known(supported, live):
            repeated = _with_evidence(known, supported)
            queries.update(tx, repeated)
            live = [repeated if fact.id == known.id else fact for fact in live]
            report.repeated += 1
            continue
        fact = _new_fact(tx, reading, supported, said_at, messages)
        relations = {older.id: relation_of(supported, older, live) for older in live}
        live = _add(tx, fact, live, relations, is_direct=reading.policy == "direct")
        report.added += 1
    return report


def _supported(reading: Reading, draft: FactDraft) -> FactDraft | None:
    """Return the draft with its evidence; None if no new message supports it."""
    supported = checked(draft, reading.messages, reading.user_id)
    if supported is None:
        return None
    if all(piece.message_id in reading.known_ids for piece in supported.evidence):
        return None
    return supported


def _known(draft: FactDraft, live: Sequence[UserFact]) -> UserFact | None:
    """Return a current or proposed fact that says the same thing, preferably a current one."""
    same = [fact for fact in live if relation_of(draft, fact, live) == "same"]
    return next((fact for fact in same if fact.state == "current"), same[0] if same else None)


def _with_evidence(fact: UserFact, draft: FactDraft) -> UserFact:
    evidence = tuple(dict.fromkeys((*fact.evidence, *draft.evidence)))
    return replace(fact, evidence=evidence[:MOST_EVIDENCE])


def _holds_secret(draft: FactDraft) -> bool:
    return redact(draft.sentence).text != draft.sentence


def _rejected_lately(tx: Transaction, user_id: str) -> list[UserFact]:
    since = tx.clock.now() - DECLINED_DAYS * DAY
    rejected = queries.of_states(tx, user_id, "rejected")
    return [fact for fact in rejected if (fact.resolved_at or 0) >= since]


def _is_rejected(draft: FactDraft, rejected: Sequence[UserFact]) -> bool:
    """Return whether the user recently rejected the same fact."""
    return any(
        fact.subject == draft.subject
        and (
            (bool(fact.slot) and (fact.slot, fact.value) == (draft.slot, draft.value))
            or says_same(fact.sentence, draft.sentence)
        )
        for fact in rejected
    )


def _new_fact(
    tx: Transaction,
    reading: Reading,
    draft: FactDraft,
    said_at: int,
    messages: dict[str, Message],
) -> UserFact:
    holds_from, holds_until = holding(draft, said_at)
    message = messages[draft.evidence[0].message_id]
    return UserFact(
        id=new_id("fact"),
        organization_id=reading.organization_id,
        user_id=reading.user_id,
        sentence=draft.sentence[:_LONGEST_SENTENCE],
        kind=draft.kind,
        source=draft.source,
        state="proposed",
        said_at=said_at,
        holds_from=holds_from,
        holds_until=holds_until,
        created_at=tx.clock.now(),
        subject=draft.subject,
        slot=draft.slot,
        value=draft.value,
        agent_id=message.agent_id,
        conversation_id=message.conversation_id,
        starts_at=draft.time.start if draft.time else None,
        ends_at=draft.time.end if draft.time else None,
        precision=draft.time.precision if draft.time else None,
        evidence=draft.evidence,
        confidence=draft.confidence,
    )


def _add(
    tx: Transaction,
    fact: UserFact,
    live: Sequence[UserFact],
    relations: dict[str, Relation],
    *,
    is_direct: bool,
) -> list[UserFact]:
    """Insert a new fact, and return all current and proposed facts."""
    met = next(
        (older for older in live if relations[older.id] in ("contradicts", "more_precise")), None
    )
    if met:
        fact = replace(fact, replaces_id=met.id, relation=relations[met.id])
    if not is_direct:
        queries.insert(tx, fact)
        return [fact, *live]
    queries.insert(tx, fact)
    return settle(tx, fact, live, relations)


def settle(
    tx: Transaction,
    fact: UserFact,
    live: Sequence[UserFact],
    relations: dict[str, Relation],
    *,
    resolved_by: str | None = None,
) -> list[UserFact]:
    """Make a fact current, and end facts that it contradicts.

    A fact about an earlier time than a current fact that it contradicts becomes ended itself.

    Args:
        tx: The transaction, which has locked the user.
        fact: The stored fact, in its old state.
        live: The user's current and proposed facts; `fact` may be one of them.
        relations: The relation of `fact` to each of these facts, by id. If one is missing, both
            facts hold.
        resolved_by: The id of the person who decided; None if the policy did.

    Returns:
        The facts that are still current or proposed.
    """
    now = tx.clock.now()
    fact = replace(fact, state="current", resolved_at=now, resolved_by=resolved_by)
    remaining: list[UserFact] = []
    for older in live:
        relation = relations.get(older.id, "both_hold")
        if older.id == fact.id:
            continue
        if relation not in ("contradicts", "more_precise") or older.state == "ended":
            remaining.append(older)
        elif relation == "more_precise":
            fact = replace(fact, holds_from=min(fact.holds_from, older.holds_from))
            queries.update(tx, _replaced(older, fact, "replaced", now))
        elif older.state == "current" and fact.holds_from < older.holds_from:
            # The new fact is about an earlier time, so the known fact continues to hold.
            fact = replace(
                fact, state="ended", holds_until=older.holds_from, replacement_id=older.id
            )
            remaining.append(older)
        elif older.state == "current":
            ended_fact = replace(older, holds_until=fact.holds_from)
            queries.update(tx, _replaced(ended_fact, fact, "ended", now))
        else:
            queries.update(tx, _replaced(older, fact, "replaced", now))
    queries.update(tx, fact)
    if fact.state == "current":
        return [fact, *remaining]
    return remaining


def _replaced(older: UserFact, fact: UserFact, state: FactState, now: int) -> UserFact:
    return replace(older, state=state, replacement_id=fact.id, resolved_at=now)
