"""The account that pays for embeddings.

It checks the budgets before each call of a model, and writes to the ledger after the call.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ricordo.domain.scope import Scope
from ricordo.domain.usage import Expense, Usage
from ricordo.errors import DatabaseFailed
from ricordo.settings import Settings
from ricordo.storage import agents, runs
from ricordo.storage.budgets import require_budget, require_common_budget
from ricordo.storage.engine.store import Store, Transaction

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EmbeddingAccount:
    """Pays for the embeddings of one piece of work, such as a request, a turn or a job.

    Attributes:
        store: The database.
        settings: The server's settings, with the common budget.
        scope: The caller, whose organization pays.
        user_id: The user for whom texts are embedded; None without one.
        agent_id: The agent whose texts are embedded or searched; None without one.
        is_background: The work is a job. A job checks its budget once, before it begins, so
            `require_budget` does nothing.
    """

    store: Store
    settings: Settings
    scope: Scope
    user_id: str | None = None
    agent_id: str | None = None
    is_background: bool = False

    async def require_budget(self) -> None:
        """Check the budgets before a call.

        Raises:
            BudgetSpent: The agent's budget or the common one is used up.
            NotFound: The agent does not exist, or the caller may not use it. The search that
                follows refuses it too, but only after the call.
        """
        if not self.is_background and (self.agent_id or self.settings.daily_tokens):
            await self.store.read(self._require_budget)

    async def record(self, tokens: Mapping[str, int]) -> None:
        """Store the tokens of a call in the ledger.

        If the database cannot be written, the tokens are only logged. The vectors are paid for, and
        a search changes nothing, so it works while the disk is full.

        Args:
            tokens: The tokens by the handle of the embedding model.
        """
        expenses = [
            Expense(
                organization_id=self.scope.organization_id,
                purpose="embedding",
                model=handle,
                usage=Usage(count),
                agent_id=self.agent_id,
                user_id=self.user_id,
            )
            for handle, count in tokens.items()
        ]
        if not expenses:
            return
        try:
            await self.store.write(lambda tx: runs.add_expense(tx, *expenses))
        except DatabaseFailed as error:
            log.warning(
                "tokens of embeddings are missing in the ledger",
                extra={"tokens": dict(tokens), "reason": error},
            )

    def _require_budget(self, tx: Transaction) -> None:
        if self.agent_id is None:
            require_common_budget(tx, self.settings, self.scope.organization_id)
            return
        agent = agents.load(tx, self.scope, self.agent_id).agent
        require_budget(tx, self.settings, agent)
