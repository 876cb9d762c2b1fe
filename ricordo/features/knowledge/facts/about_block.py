"""The block `about_the_user`, which shows an agent the facts about its user.

It is stored like any other block: read-only, with an empty value. Prompts fill it with the current
facts of the conversation's user, and store nothing. So a prompt changes only when the facts change,
and no version of the block contains forgotten facts.
"""

from collections.abc import Sequence
from dataclasses import replace

from ricordo.domain.agent import AgentState
from ricordo.features.knowledge.facts.profile import facts_profile
from ricordo.llm.tokens import text_tokens
from ricordo.plugins import PromptAddition
from ricordo.storage.engine.store import Transaction

LABEL = "about_the_user"
# The default number of tokens of the block, and the bounds of the number in its metadata,
# {"tokens": 800}.
_TOKENS = 400
_LEAST, _MOST = 50, 4_000
_NOTHING = "Nothing is known of this user yet."


def with_user(tx: Transaction, states: Sequence[AgentState]) -> Sequence[AgentState]:
    """Return the states. A state with the block and a user gets the user's current facts."""
    return [_with_user(tx, state) for state in states]


def _with_user(tx: Transaction, state: AgentState) -> AgentState:
    user_id = state.conversation.user_id
    block = next((block for block in state.blocks if block.shown_label == LABEL), None)
    if user_id is None or block is None or block.rule != "read_only":
        return state
    profile = facts_profile(
        tx, user_id, limit=_tokens(block.metadata.get("tokens")), tokens_of=text_tokens
    )
    texts = {**state.shown_texts, LABEL: profile.text or _NOTHING}
    spans = {**state.shown_spans, LABEL: profile.spans} if profile.spans else state.shown_spans
    return replace(state, shown_texts=texts, shown_spans=spans)


def _tokens(chosen: object) -> int:
    if isinstance(chosen, bool) or not isinstance(chosen, int):
        return _TOKENS
    return min(max(chosen, _LEAST), _MOST)


ADDITION = PromptAddition(with_user, label=LABEL)
