"""Add a rule that no agent may remember a forgotten fact again.

The rule does not reveal the fact.
"""

from ricordo.domain.block import NEVER_REMEMBER
from ricordo.domain.scope import Scope
from ricordo.features.memory_care.forgetting.state import Forgetting
from ricordo.memory import unwanted, user_memory
from ricordo.memory.user_memory import PutOptions
from ricordo.storage.engine.store import Transaction

_OPTIONS = PutOptions(
    message="Never remember the forgotten text",
    title="Never remember",
    description="Things that no agent may remember or propose, one on each line. Agents do not see them.",
    policy="read_only",
)

_MOST_RULES = 20


def add_rule(tx: Transaction, forgetting: Forgetting) -> None:
    """Add the rule for this removal to the user's rules, if it is not there yet."""
    scope = Scope(forgetting.organization_id)
    user_id = forgetting.user_id or forgetting.local_user_id
    memory = user_memory.open_memory(tx, scope, user_id, makes=True)
    block = user_memory.find(tx, memory, NEVER_REMEMBER)
    lines = [line for line in (block.value if block else "").split("\n") if line.strip()]
    day = forgetting.asked_at[:10]
    new_lines = [
        unwanted.unreadable_rule(part, day, salt=forgetting.id)
        for part in forgetting.needle_of_followers.parts[:_MOST_RULES]
    ]
    added = [line for line in dict.fromkeys(new_lines) if line and line not in lines]
    if added:
        text = "\n".join([*lines, *added])
        user_memory.put(tx, memory, NEVER_REMEMBER, text, memory.owner, _OPTIONS)
