"""Groups as JSON, with the caller's turn count and last read message."""

from collections.abc import Sequence

from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.features.groups import sleep_queries
from ricordo.features.groups.models import GroupResponse
from ricordo.features.groups.records import ASLEEP, Group
from ricordo.storage.engine.store import Transaction


def groups_json(tx: Transaction, scope: Scope, groups: Sequence[Group]) -> list[Json]:
    """Return the groups as JSON.

    Groups with sleeptime agents need at most three more statements, for all of them together.
    """
    asleep = [group.id for group in groups if group.manager_type in ASLEEP]
    if asleep:
        turns = sleep_queries.turns(tx, asleep, scope.subject)
    else:
        turns = {}
    if asleep:
        read = sleep_queries.last_read(tx, asleep, scope.subject)
    else:
        read = {}
    return [
        GroupResponse.from_group(group, turns.get(group.id), read.get(group.id)) for group in groups
    ]
