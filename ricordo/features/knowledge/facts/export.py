"""A user's facts in the export of the user's memory."""

from collections.abc import Sequence

from ricordo.domain.scope import Scope
from ricordo.domain.text import Json
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.queries import FactFilter
from ricordo.features.knowledge.facts.routes import responses_of
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction

_MOST = 1_000_000


def facts_of_user(tx: Transaction, scope: Scope, user_id: str) -> tuple[str, Sequence[Json]]:
    """Return the name of the file, and all facts of the user, newest first."""
    facts = queries.page(tx, scope, user_id, Page(limit=_MOST), FactFilter())
    return "facts.jsonl", responses_of(tx, facts)
