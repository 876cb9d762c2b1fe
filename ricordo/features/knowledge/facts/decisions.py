"""Decisions of a user about facts: approve, reject, correct, add and forget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ricordo.domain.egress import ONLY_OWNER, is_as_strict, join, label_of
from ricordo.domain.ids import new_id
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Scope, User
from ricordo.domain.text import normal_text
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.comparison import relation_of
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.filing import settle
from ricordo.features.knowledge.facts.records import FactDraft, FactKind, UserFact
from ricordo.features.knowledge.facts.times import holding, with_time
from ricordo.storage import users
from ricordo.storage.engine.store import Transaction

LONGEST_SENTENCE = 400


@dataclass(frozen=True, slots=True)
class FactChange:
    """New values of a fact; None keeps the old one.

    Times are in microseconds. With `is_open` the end is removed, so that the fact continues to
    hold.
    """

    sentence: str | None = None
    kind: FactKind | None = None
    holds_from: int | None = None
    holds_until: int | None = None
    is_open: bool = False


def require_owner(scope: Scope, user: User) -> None:
    """Raise Forbidden unless the caller may decide about this user's memory.

    Args:
        scope: The caller.
        user: The user whom the facts are about.

    Raises:
        Forbidden: The caller is neither the user nor may decide for the user.
    """
    if not scope.may_decide_for("user", user.id):
        raise Forbidden("Only the user may decide about facts. Use one of the user's keys.")


def require(
    tx: Transaction, scope: Scope, user: User, fact_id: str, *, locks: bool = True
) -> UserFact:
    """Return a fact of this user.

    Args:
        tx: The transaction.
        scope: The caller.
        user: The user to whom the fact must belong.
        fact_id: The fact.
        locks: Lock the user until this transaction ends, for a change.

    Raises:
        NotFound: if the caller does not see the fact, or it is another user's.
    """
    if locks:
        users.lock(tx, user.id)
    fact = queries.get(tx, scope, fact_id)
    if fact.user_id != user.id:
        raise NotFound(f"Fact with ID {fact_id} not found")
    return fact


def approve(tx: Transaction, fact: UserFact, by: str | None) -> UserFact:
    """Make a proposed fact current, and end the facts that it contradicts.

    Args:
        tx: The transaction, which has locked the user.
        fact: The proposed fact.
        by: The id of the person who decides; None if unknown.

    Raises:
        Conflict: if the fact is not proposed.
    """
    live = queries.of_states(tx, fact.user_id, "current", "proposed")
    approve_among(tx, fact, live, by)
    return queries.get(tx, Scope(fact.organization_id), fact.id)


def approve_among(
    tx: Transaction, fact: UserFact, live: Sequence[UserFact], by: str | None
) -> list[UserFact]:
    """Approve a proposed fact as `approve` does, and return the current and proposed facts.

    Args:
        tx: The transaction, which has locked the user.
        fact: The proposed fact.
        live: The current and proposed facts with which it is compared.
        by: The id of the person who decides; None if unknown.

    Raises:
        Conflict: if the fact is not proposed.
    """
    _require_proposed(fact)
    return _settle(tx, fact, _draft_of(fact), live, by)


def reject(tx: Transaction, fact: UserFact, by: str | None) -> UserFact:
    """Reject a proposed fact; the same fact is not proposed again for 30 days.

    Args:
        tx: The transaction, which has locked the user.
        fact: The proposed fact.
        by: The id of the person who decides; None if unknown.

    Raises:
        Conflict: if the fact is not proposed.
    """
    _require_proposed(fact)
    rejected = replace(fact, state="rejected", resolved_at=tx.clock.now(), resolved_by=by)
    queries.update(tx, rejected)
    return rejected


def change(tx: Transaction, fact: UserFact, changed: FactChange, by: str | None) -> UserFact:
    """Store the corrected fact; the old one stays as its earlier wording.

    A corrected proposal is approved, and ends the facts that it contradicts.

    Args:
        tx: The transaction, which has locked the user.
        fact: The fact before the change.
        changed: The new values.
        by: The id of the person who corrects; None if unknown.

    Raises:
        Invalid: if the sentence is empty or too long, or the end is before the start.
        Conflict: for a fact that was replaced or rejected.
    """
    if fact.state not in ("proposed", "current", "ended"):
        raise Conflict(f"This fact is {fact.state} already. Change the current one instead.")
    corrected = replace(fact, kind=changed.kind or fact.kind)
    if changed.sentence is not None:
        corrected = _reworded(fact, changed.sentence, corrected.kind)
    holds_from = corrected.holds_from if changed.holds_from is None else changed.holds_from
    holds_until = corrected.holds_until if changed.holds_until is None else changed.holds_until
    if changed.is_open:
        holds_until = None
    if holds_until is not None and holds_until < holds_from:
        raise Invalid("A fact cannot end before it begins. Change one of the two times.")
    now = tx.clock.now()
    new = replace(
        corrected,
        id=new_id("fact"),
        holds_from=holds_from,
        holds_until=holds_until,
        state="ended" if holds_until is not None and holds_until <= now else "current",
        source="user",
        confidence=None,
        created_at=now,
        resolved_at=now,
        resolved_by=by,
        replaces_id=fact.id,
        relation="more_precise",
        replacement_id=None,
    )
    queries.insert(tx, new)
    queries.update(
        tx, replace(fact, state="replaced", replacement_id=new.id, resolved_at=now, resolved_by=by)
    )
    if fact.state == "proposed" and new.state == "current":
        # The correction approves the proposal, so it ends the same facts as an approval.
        proposed = replace(new, replaces_id=fact.replaces_id, relation=fact.relation)
        live = queries.of_states(tx, fact.user_id, "current", "proposed")
        _settle(tx, new, _draft_of(proposed), live, by)
        return queries.get(tx, Scope(new.organization_id), new.id)
    return new


def add(
    tx: Transaction, user: User, sentence: str, kind: FactKind | None, by: str | None
) -> UserFact:
    """Store a fact that its user wrote. It ends the facts that it contradicts.

    If a fact says the same already, that one is returned; it is approved if it was proposed.

    Args:
        tx: The transaction.
        user: The user whom the fact is about, who is locked here.
        sentence: The fact. Secrets in it are redacted.
        kind: The kind; None for the one that the rules find, or else "who".
        by: The id of the person who adds it; None if unknown.

    Raises:
        Invalid: if the sentence is empty or too long.
    """
    users.lock(tx, user.id)
    sentence = _sentence(sentence)
    now = tx.clock.now()
    draft = next(iter(drafts_in("", sentence, now)), None)
    if draft is None:
        draft = FactDraft(sentence, kind or "who", ())
    draft = _as_kind(draft, kind or draft.kind, now)
    draft = replace(draft, sentence=sentence, evidence=(), source="user")
    holds_from, holds_until = holding(draft, now)
    fact = UserFact(
        id=new_id("fact"),
        organization_id=user.organization_id,
        user_id=user.id,
        sentence=sentence,
        kind=draft.kind,
        source="user",
        state="current",
        said_at=now,
        holds_from=holds_from,
        holds_until=holds_until,
        created_at=now,
        subject=draft.subject,
        slot=draft.slot,
        value=draft.value,
        starts_at=draft.time.start if draft.time else None,
        ends_at=draft.time.end if draft.time else None,
        precision=draft.time.precision if draft.time else None,
    )
    live = queries.of_states(tx, user.id, "current", "proposed")
    relations = {older.id: relation_of(draft, older, live) for older in live}
    if known := next((fact for fact in live if relations[fact.id] == "same"), None):
        if known.state == "proposed":
            return approve(tx, known, by)
        return known
    queries.insert(tx, fact)
    settle(tx, fact, live, relations, resolved_by=by)
    return queries.get(tx, Scope(user.organization_id), fact.id)


def set_egress(
    tx: Transaction, scope: Scope, user: User, kind: FactKind, names: Sequence[str] | None
) -> str | None:
    """Set the egress policy of a kind of the user's facts, and return its label.

    The user's choice replaces the labels of stored facts. The choice of anybody else is added to
    those labels, because it may only restrict. Facts that were restored or moved to this kind may
    have other labels.

    Args:
        tx: The transaction, which locks the user, so that no fact is stored meanwhile.
        scope: The caller, who may decide about the user's facts.
        user: The user.
        kind: The kind of facts.
        names: Providers, kinds of tools or "local"; None removes the policy.

    Raises:
        Forbidden: if a caller who is not the user would let more destinations see the facts.
        Invalid: if a name cannot be a destination, or there are too many.
    """
    label = label_of(names)
    users.lock(tx, user.id)
    old = queries.kind_labels(tx, user.organization_id, user.id).get(kind)
    is_owner = scope.subject == user.id
    if not (is_owner or is_as_strict(label, old)):
        raise Forbidden(ONLY_OWNER)
    queries.set_kind_label(tx, user.organization_id, user.id, kind, label)
    if is_owner:
        queries.relabel(tx, user.id, kind, lambda _: label)
    else:
        queries.relabel(tx, user.id, kind, partial(join, label))
    return label


def _reworded(fact: UserFact, sentence: str, kind: FactKind) -> UserFact:
    """Return the fact with another sentence and this kind.

    It gets the values that the rules read from the sentence.
    """
    sentence = _sentence(sentence)
    old_draft = _read(fact, fact.sentence, fact.kind)
    draft = _read(fact, sentence, kind)
    new = replace(
        fact,
        sentence=sentence,
        kind=kind,
        subject=draft.subject,
        slot=draft.slot,
        value=draft.value,
    )
    if draft.time == old_draft.time:
        return new
    # A start or end of the fact that is not from the old sentence, such as one that a person set,
    # stays.
    old_from, old_until = holding(replace(old_draft, time=fact.stated_time), fact.said_at)
    read_from, read_until = holding(draft, fact.said_at)
    holds_from = read_from if fact.holds_from == old_from else fact.holds_from
    holds_until = read_until if fact.holds_until == old_until else fact.holds_until
    if holds_until is not None and holds_until < holds_from:
        holds_from, holds_until = fact.holds_from, fact.holds_until
    return replace(
        new,
        starts_at=draft.time.start if draft.time else None,
        ends_at=draft.time.end if draft.time else None,
        precision=draft.time.precision if draft.time else None,
        holds_from=holds_from,
        holds_until=holds_until,
    )


def _read(fact: UserFact, sentence: str, kind: FactKind) -> FactDraft:
    """Return the first fact that the rules read in a sentence about this fact, as this kind."""
    draft = next(iter(drafts_in("", sentence, fact.said_at)), None)
    if draft is None:
        draft = FactDraft(sentence, kind, (), subject=fact.subject)
    return _as_kind(draft, kind, fact.said_at)


def _as_kind(draft: FactDraft, kind: FactKind, said_at: int) -> FactDraft:
    """Return the draft with another kind, and with the time that its sentence then names.

    For a plan, a date without a year is the next such date.
    """
    if draft.kind != kind:
        draft = replace(draft, kind=kind, time=None)
    return with_time(draft, said_at)


def _sentence(text: str) -> str:
    sentence = " ".join(normal_text(redact(text).text).split())
    if not sentence:
        raise Invalid("The fact is empty. Write one sentence.")
    if len(sentence) > LONGEST_SENTENCE:
        raise Invalid(f"A fact has at most {LONGEST_SENTENCE} characters. Shorten it.")
    return sentence


def _settle(
    tx: Transaction, fact: UserFact, draft: FactDraft, live: Sequence[UserFact], by: str | None
) -> list[UserFact]:
    """Make a fact current, end the facts that its draft contradicts, and return the others."""
    relations = {
        older.id: relation_of(draft, older, live)
        for older in live
        # A proposal from a later message waits for a separate decision.
        if older.state == "current" or older.said_at <= fact.said_at
    }
    return settle(tx, fact, live, relations, resolved_by=by)


def _require_proposed(fact: UserFact) -> None:
    if fact.state != "proposed":
        raise Conflict(f"This fact is {fact.state} already, so there is nothing to decide.")


def _draft_of(fact: UserFact) -> FactDraft:
    return FactDraft(
        fact.sentence,
        fact.kind,
        fact.evidence,
        subject=fact.subject,
        slot=fact.slot,
        value=fact.value,
        time=fact.stated_time,
        corrects=fact.relation == "contradicts",
        source=fact.source,
        old_id=fact.replaces_id,
        relation=fact.relation,
    )
