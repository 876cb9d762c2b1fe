"""Set egress policies with the caller's rights, and preview their effect on a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ricordo.agents.conversations import require_own
from ricordo.domain.agent import AgentState, effective
from ricordo.domain.block import Block
from ricordo.domain.egress import ONLY_OWNER, Destination, is_as_strict, label_of, permits
from ricordo.domain.scope import Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Forbidden, NotFound
from ricordo.features.files.folders import queries as folder_queries
from ricordo.features.files.folders.records import Folder
from ricordo.memory.egress import spans_of
from ricordo.prompt.egress import cleared_state
from ricordo.runtime import Runtime
from ricordo.storage import agents, blocks, egress, runs, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.message_cache import read_window


@dataclass(frozen=True, slots=True)
class Withheld:
    """A part of an agent's prompt that a model would not see, and the number of its lines."""

    source: str
    lines: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The parts of an agent's prompt that a model's provider may see, and the withheld parts.

    `refused` is the error of every turn with this model; None if turns are possible.
    """

    model: str
    destination: Destination
    shown: Sequence[str]
    withheld: Sequence[Withheld]
    refused: str | None = None


def set_block_policy(
    tx: Transaction, scope: Scope, block_id: str, names: Sequence[str] | None
) -> Block:
    """Set a block's policy, or remove it if `names` is None.

    Only its owner may make the policy of a user's block less strict.

    Args:
        tx: The transaction.
        scope: The caller.
        block_id: The block.
        names: Providers, kinds of tools or "local", in upper or lower case; an empty list allows no
            destination.

    Raises:
        NotFound: if the caller does not see the block.
        Forbidden: if the caller may not change it, or not in this direction.
        Invalid: if a name cannot be a destination, or there are too many.
        Overtaken: if another transaction wrote the block meanwhile.
    """
    block = blocks.get(tx, scope, block_id)
    label = label_of(names)
    chain = versions.lock(tx, block.chain_id)
    if chain is None:
        raise NotFound(f"Block with id '{block_id}' not found")
    is_own = chain.owner_kind == "user" and scope.subject == chain.owner_id
    if chain.owner_kind != "user" and scope.subject_id is not None:
        _require_agents(scope)
    metadata = ChangeMetadata(scope.actor, f"Change who may see {block.label}")
    is_owner = metadata.is_owners_of(chain) and metadata.author.kind != "administrator"
    if chain.owner_kind == "user" and not (is_own and is_owner):
        _require_stricter(label, block.egress)
        # A stricter policy reveals nothing, so it needs no approval.
        metadata = replace(metadata, approved_by=scope.user_id)
    if label == block.egress:
        return block
    changed = replace(block, egress=label, updated_by=scope.user_id)
    return blocks.update(tx, block, changed, metadata)


def set_conversation_policy(
    tx: Transaction, scope: Scope, conversation_id: str, names: Sequence[str] | None
) -> str | None:
    """Set the policy of a conversation and all its messages.

    Returns the policy as a label; None if it was removed.

    Args:
        tx: The transaction.
        scope: The caller, who may write in the conversation.
        conversation_id: The conversation.
        names: As in `set_block_policy`.

    Raises:
        NotFound, Forbidden, Invalid: as in `set_block_policy`.
        Busy: while a turn runs in the conversation.
    """
    label = label_of(names)
    # A running turn has read the old policy, and would store its messages without the new policy.
    conversation = require_own(scope, runs.lock_idle(tx, scope, conversation_id))
    if conversation.user_id and conversation.user_id != scope.subject:
        _require_stricter(label, conversation.egress)
    egress.label_conversation(tx, conversation_id, conversation.egress, label)
    return label


def set_folder_policy(
    tx: Transaction, scope: Scope, folder_id: str, names: Sequence[str] | None
) -> Folder:
    """Set the policy of a folder. The chunks of its files get it too.

    Args:
        tx: The transaction.
        scope: The caller.
        folder_id: The folder.
        names: As in `set_block_policy`.

    Raises:
        NotFound, Forbidden, Invalid: as in `set_block_policy`.
    """
    label = label_of(names)
    folder_queries.lock_folder(tx, folder_id)
    folder = folder_queries.get_folder(tx, scope, folder_id)
    if folder.user_id and folder.user_id != scope.subject:
        _require_stricter(label, folder.egress)
    elif not folder.user_id and scope.subject_id is not None:
        _require_agents(scope)
    changed = replace(folder, egress=label)
    folder_queries.set_egress(tx, folder_id, label)
    egress.label_archive(tx, folder.archive_id, folder.egress, label)
    return changed


def preview(
    tx: Transaction,
    runtime: Runtime,
    scope: Scope,
    agent_id: str,
    model: str,
    destination: Destination,
) -> Preview:
    """Return the shown and withheld parts of the agent's next prompt for this model.

    Args:
        tx: The transaction.
        runtime: The running server.
        scope: The caller, whose default conversation with the agent is taken.
        agent_id: The agent.
        model: The model's handle; it is only repeated in the answer.
        destination: The provider of the model.

    Raises:
        NotFound: if the caller may not use the agent.
    """
    state = effective(agents.load(tx, scope, agent_id))
    (state,) = runtime.complete(tx, (state,))
    clearance = runtime.new_clearance()
    refused = _refusal(state, destination)
    cleared_state(state, destination, clearance, partial(spans_of, runtime.settings.data_dir))
    clearance.messages(read_window(tx, state)[1:], destination)
    return Preview(
        model=model,
        destination=destination,
        shown=sorted(clearance.shown),
        withheld=[Withheld(*entry) for entry in sorted(clearance.withheld.items())],
        refused=refused,
    )


def _refusal(state: AgentState, destination: Destination) -> str | None:
    if permits(state.conversation.egress, destination):
        return None
    return f"The egress policy of this conversation does not allow {destination.name}."


def _require_stricter(label: str | None, old: str | None) -> None:
    if not is_as_strict(label, old):
        raise Forbidden(ONLY_OWNER)


def _require_agents(scope: Scope) -> None:
    if not scope.may("agents:write"):
        raise Forbidden("Others share this. To change it, use a key with the scope agents:write.")
