"""Find the egress labels of answers that clients send back.

In tasks, temporary chats and edited chats, a client sends texts without their labels.
"""

from collections.abc import Mapping
from functools import partial

from ricordo.api.call import RequestContext
from ricordo.domain.agent import AgentState
from ricordo.domain.egress import IN_PROCESS, Clearance, join
from ricordo.features.openai.shown_answers import answer_key
from ricordo.memory.egress import spans_of
from ricordo.prompt.egress import cleared_state
from ricordo.storage import messages
from ricordo.storage.engine.store import Transaction

MOST = 500
"""The number of the agent's last messages with the user that are compared."""


def chat_clearance(tx: Transaction, context: RequestContext, state: AgentState) -> Clearance:
    """Return a clearance that knows the labelled texts of the agent and of its recent messages.

    Args:
        tx: The transaction.
        context: The context of the request.
        state: The agent in the conversation.
    """
    runtime = context.runtime
    clearance = runtime.new_clearance()
    # The destination makes no difference, since only the labelled texts are used.
    cleared_state(state, IN_PROCESS, clearance, partial(spans_of, runtime.settings.data_dir))
    for message in messages.labelled(tx, state.agent.id, context.scope.subject, MOST):
        clearance.know(f"message:{message.id}", message.egress, message.text)
    return clearance


def labels_of_messages(
    tx: Transaction, context: RequestContext, agent_id: str
) -> Mapping[str, str]:
    """Return the labels of the agent's recent messages with the user, by `answer_key`.

    Answers with the same words get the policies of all of them.

    Args:
        tx: The transaction, or a read.
        context: The call, for the user that the messages are about.
        agent_id: The agent.
    """
    labels: dict[str, str] = {}
    for message in messages.labelled(tx, agent_id, context.scope.subject, MOST):
        key = answer_key(message.text)
        if label := join(labels.get(key), message.egress):
            labels[key] = label
    return labels
