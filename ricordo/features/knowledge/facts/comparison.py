"""Compare a new fact with an older fact.

They may be equal, contradict each other, or both hold; or one may be more precise. Pure. Only facts
with the same subject are compared. Rules compare values of the same slot, tastes of the same thing,
and the sentences of facts without a slot. A model may claim that two facts are related; the claim
is used only if both are about the same thing.
"""

from collections.abc import Iterable

from ricordo.features.knowledge.facts.extraction import content_words
from ricordo.features.knowledge.facts.records import FactDraft, Relation, UserFact
from ricordo.memory.line_likeness import says_same

# Slots of which a person may have several values, unless the new fact's wording says that it
# replaces the old one.
_SEVERAL = ("job", "workplace")
_DENIED = "not "
_FAVOURITE = "favourite"
_PREFERENCE = "preference"
_LIKES = "likes"
# Words that sentences about different things often share.
_COMMON = content_words(
    "year month week day today tomorrow yesterday time last next new old jahr monat woche tag an mois"
    " semaine jour año mes semana día anno mese settimana giorno"
)


def relation_of(draft: FactDraft, older: UserFact, live: Iterable[UserFact] = ()) -> Relation:
    """Return the relation of a draft to an older fact; unrelated facts both hold.

    Args:
        draft: The new fact.
        older: The stored fact.
        live: All current and proposed facts of the user. A favourite without a topic is compared
            only if at most one of these facts is a favourite.
    """
    if draft.subject != older.subject:
        return "both_hold"
    if draft.old_id == older.id and draft.relation and _may_be_related(draft, older):
        return draft.relation
    if draft.slot and older.slot:
        if _is_same_slot(draft.slot, older.slot, live):
            return _of_values(draft, older)
        return _of_tastes(draft, older)
    if not draft.slot and not older.slot and draft.kind == older.kind:
        is_same_time = (draft.time.start if draft.time else None) == older.starts_at
        if is_same_time and says_same(draft.sentence, older.sentence):
            return "same"
    return "both_hold"


def _may_be_related(draft: FactDraft, older: UserFact) -> bool:
    """Return whether a model's claim about two facts can be true.

    Facts of different slots are unrelated, and so are sentences of different kinds that share only
    one word.
    """
    if draft.slot and older.slot:
        return draft.slot == older.slot
    shared = content_words(draft.sentence) & content_words(older.sentence) - _COMMON
    return len(shared) > 1 or (bool(shared) and draft.kind == older.kind)


def _is_same_slot(slot: str, older_slot: str, live: Iterable[UserFact]) -> bool:
    if slot == older_slot:
        return True
    # "My favourite is now coffee" names no topic, so it can only mean the single known favourite.
    names = {slot.partition(":")[0], older_slot.partition(":")[0]}
    if names != {_FAVOURITE} or _FAVOURITE not in (slot, older_slot):
        return False
    return sum(fact.slot.partition(":")[0] == _FAVOURITE for fact in live) <= 1


def _of_values(draft: FactDraft, older: UserFact) -> Relation:
    """Return the relation of two values in one slot."""
    if draft.value == older.value:
        return "same"
    if draft.value.startswith(_DENIED) or older.value.startswith(_DENIED):
        denied = draft.value.removeprefix(_DENIED) == older.value.removeprefix(_DENIED)
        return "contradicts" if denied else "both_hold"
    words, older_words = set(draft.value.split()), set(older.value.split())
    if not draft.corrects:
        if older_words < words:
            return "more_precise"
        if words < older_words:
            return "same"
    if draft.slot in _SEVERAL and not draft.corrects:
        return "both_hold"
    return "contradicts"


def _of_tastes(draft: FactDraft, older: UserFact) -> Relation:
    """Return the relation of a favourite, a preference and a liking of the same thing.

    "I prefer coffee to tea" contradicts the favourite "tea", and so does "I hate tea".
    """
    name, _, things = draft.slot.partition(":")
    older_name, _, older_things = older.slot.partition(":")
    pair = {name, older_name}
    if pair == {_FAVOURITE, _PREFERENCE}:
        compared = things if name == _PREFERENCE else older_things
        favourite = draft.value if name == _FAVOURITE else older.value
        preferred = draft.value if name == _PREFERENCE else older.value
        is_loser = favourite in compared.split("|") and favourite != preferred
        return "contradicts" if is_loser else "both_hold"
    if pair == {_FAVOURITE, _LIKES}:
        liking = draft.value if name == _LIKES else older.value
        thing = things if name == _LIKES else older_things
        favourite = draft.value if name == _FAVOURITE else older.value
        is_disliked = liking == "no" and content_words(favourite) == content_words(thing)
        return "contradicts" if is_disliked else "both_hold"
    return "both_hold"
