"""Answers as clients show them, compared with the answers that agents gave.

A person can edit or delete an answer in a client, or stop it half-way. Then the text that the
client shows counts. A client may also show an answer in another form, for example with the
reasoning.
"""

import re
from collections.abc import Mapping, Sequence

from ricordo.domain.message import Message
from ricordo.features.openai.models import ChatMessage
from ricordo.features.openai.queries import runs_of_chat
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction

_DETAILS = re.compile(r"<details\b.*?(?:</details>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_NOT_A_WORD = re.compile(r"[\W_]+")


def answer_key(text: str) -> str:
    """Return the words of an answer without formatting, for comparison.

    A text without words, such as "👍", is compared by its other characters.

    Args:
        text: An answer as stored, or as a client shows it.
    """
    bare = _TAG.sub("", _DETAILS.sub("", text))
    compared_text = _NOT_A_WORD.sub("", bare).casefold()
    return compared_text or "".join(bare.split())


def shown_before(chat: Sequence[ChatMessage], index: int) -> tuple[int, str]:
    """Return the answer right before this index: the index of its first message, and its text.

    Args:
        chat: The client's messages, the oldest first.
        index: The index of the message after the answer.
    """
    start = index
    while start and chat[start - 1].role not in ("user", "system", "developer"):
        start -= 1
    texts = [message.text for message in chat[start:index] if message.role == "assistant"]
    return start, "\n\n".join(filter(str.strip, texts))


def answers_of(tx: Transaction, run_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the stored answers of these runs by id; for a run without an answer, "".

    Args:
        tx: The transaction.
        run_ids: The runs. The caller's access to them is checked before.
    """
    answers = dict.fromkeys(run_ids, "")
    texts: dict[str, list[str]] = {}
    for message in messages.of_runs(tx, list(answers)) if answers else ():
        if _is_answer(message):
            texts.setdefault(message.run_id or "", []).append(message.spoken)
    return answers | {run_id: "\n\n".join(parts) for run_id, parts in texts.items()}


def own_answers(
    tx: Transaction, agent_id: str, user_id: str | None, name: str | None
) -> frozenset[str]:
    """Return the keys of the agent's answers in the chat of this name, at most of 2,000 runs.

    Args:
        tx: The transaction.
        agent_id: The agent.
        user_id: The chat's user; None for chats without a user.
        name: The chat's id in the client. Without one, no keys are returned.

    Returns:
        Keys as `answer_key` makes them.
    """
    if not name:
        return frozenset()
    run_ids = runs_of_chat(tx, agent_id, user_id, name)
    return frozenset(map(answer_key, answers_of(tx, run_ids).values())) - {""}


def unsaved_rest(stored: str, shown: str) -> str:
    """Return the part of a shown answer that was not stored because the answer was stopped.

    Args:
        stored: The answer's stored text; empty if nothing was stored.
        shown: The text that the client shows, which begins with the stored text.
    """
    if answer_key(stored) == answer_key(shown):
        return ""
    bare = shown.strip()
    return bare.removeprefix(stored.strip()).strip() if stored.strip() else bare


def _is_answer(message: Message) -> bool:
    return message.role in ("assistant", "approval") and message.step_id is not None
