"""Check that facts are based on the user's words. Pure.

A fact is refused if it quotes no message of its user. Untrusted and recalled text, events and
results of tools are no evidence. The agent's words are evidence only if the user's next message
confirms them.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.agents.request import holds_retrieved
from ricordo.domain.message import Message
from ricordo.features.knowledge.facts.extraction import confirms
from ricordo.features.knowledge.facts.records import Evidence, FactDraft
from ricordo.memory.statements import is_note

_LONGEST_QUOTE = 400
_SHORTEST_QUOTE = 2
MOST_EVIDENCE = 10  # pieces of one fact


def is_evidence(message: Message, user_id: str) -> bool:
    """Return whether the user wrote the message.

    Args:
        message: A message of any role.
        user_id: The user whom the facts are about.
    """
    return (
        message.is_said
        and not message.is_untrusted
        and message.user_id == user_id
        and message.sender_id in (None, user_id)
        and not holds_retrieved(message.text)
    )


def is_shown(message: Message, user_id: str) -> bool:
    """Return True if facts may be read from this message of the user or the agent.

    A message with an egress label gives no facts, since facts would not keep the label.

    Args:
        message: A message of any role.
        user_id: The user whom the facts are about.
    """
    if message.egress:
        return False
    if message.role == "assistant":
        return bool(message.spoken.strip())
    return is_evidence(message, user_id) and bool(message.text.strip())


def checked(draft: FactDraft, messages: Sequence[Message], user_id: str) -> FactDraft | None:
    """Return the draft with its valid evidence; None if no evidence is valid.

    A model's sentence may contain no numbers or names that its messages lack, and only few other
    words that they lack.

    Args:
        draft: The fact as it was read.
        messages: The messages from which it was read, in order.
        user_id: The user whom the fact is about.
    """
    places = {message.id: index for index, message in enumerate(messages)}
    pieces: dict[Evidence, None] = {}
    for piece in draft.evidence:
        message_index = places.get(piece.message_id)
        if message_index is None or not stands_in(piece.quote, messages[message_index]):
            continue
        if is_evidence(messages[message_index], user_id):
            pieces[_short(piece)] = None
        elif confirmation := _confirmation(messages, message_index, user_id):
            pieces[_short(piece)] = None
            pieces[confirmation] = None
    if not pieces:
        return None
    evidence = tuple(pieces)[:MOST_EVIDENCE]
    if draft.source == "model" and not _is_supported(draft, evidence, messages, places):
        return None
    return replace(draft, evidence=evidence)


def stands_in(quote: str, message: Message) -> bool:
    """Return whether a message contains the quoted words.

    Args:
        quote: The quote. Case and blanks make no difference, and a single letter is no quote.
        message: The message.
    """
    folded_quote = _folded(quote)
    return len(folded_quote) >= _SHORTEST_QUOTE and folded_quote in _folded(message.spoken)


def _confirmation(messages: Sequence[Message], index: int, user_id: str) -> Evidence | None:
    """Return the user's next message as evidence, if it confirms the agent's words."""
    if messages[index].role != "assistant":
        return None
    following = next((message for message in messages[index + 1 :]), None)
    if following and is_evidence(following, user_id) and confirms(following.text):
        return _short(Evidence(following.id, " ".join(following.text.split())))
    return None


def _is_supported(
    draft: FactDraft,
    evidence: Sequence[Evidence],
    messages: Sequence[Message],
    places: dict[str, int],
) -> bool:
    """Return whether the quoted messages support the sentence.

    The messages that they answer are read too.
    """
    sources: list[str] = []
    for piece in evidence:
        index = places[piece.message_id]
        if index and messages[index - 1].role == "assistant":
            sources.append(messages[index - 1].spoken)
        sources.append(messages[index].spoken)
    return is_note(draft.sentence, "\n".join(sources))


def _short(piece: Evidence) -> Evidence:
    if len(piece.quote) <= _LONGEST_QUOTE:
        return piece
    return replace(piece, quote=piece.quote[:_LONGEST_QUOTE])


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
