"""Find the egress labels of answers that clients send back.

In tasks, temporary chats and edited chats, a client sends texts without their labels.
"""

from collections.abc import Mapping
from functools import partial

from ricordo.api.call import RequestContext
from ricordo.domain.agent import AgentState
from ricordo.domain.egress import IN_PROCESS, Clearance, join
from ricordo.features.openai.shown_answers import answer_key, answers_of
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

    A client shows the texts of a run as one answer. So there is also a key for the whole answer of
    each run. If several answers have the same words, their key has the policies of all.

    Args:
        tx: The transaction, or a read.
        context: The call, for the user that the messages are about.
        agent_id: The agent.
    """
    labelled = messages.labelled(tx, agent_id, context.scope.subject, MOST)
    labels_of_runs: dict[str, str] = {}
    texts = [(message.text, message.egress) for message in labelled]
    for message in labelled:
        if message.run_id and (label := join(labels_of_runs.get(message.run_id), message.egress)):
            labels_of_runs[message.run_id] = label
    answers = answers_of(tx, list(labels_of_runs))
    texts += [(answers[run_id], label) for run_id, label in labels_of_runs.items()]
    labels: dict[str, str] = {}
    for text, text_label in texts:
        key = answer_key(text)
        if key and (label := join(labels.get(key), text_label)):
            labels[key] = label
    return labels
