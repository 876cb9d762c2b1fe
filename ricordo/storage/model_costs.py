"""The account that pays for the answers of chat models."""

import asyncio
import logging
from dataclasses import dataclass, replace

from ricordo.domain.usage import Expense, Purpose, Usage
from ricordo.errors import DatabaseFailed
from ricordo.storage import runs, users
from ricordo.storage.engine.store import Store, Transaction

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplyAccount:
    """Pays for the answers to one piece of work, such as a request, a turn or a job.

    Attributes:
        store: The database.
        organization_id: The organization that pays.
        purpose: The purpose in the ledger.
        agent_id: The agent whose work it is; None without one.
        user_id: The user for whom the model is asked; None without one.
    """

    store: Store
    organization_id: str
    purpose: Purpose = "other"
    agent_id: str | None = None
    user_id: str | None = None

    async def record(self, handle: str, usage: Usage) -> None:
        """Store the tokens of answers in the ledger, even while the caller is being cancelled.

        If the database cannot be written, the tokens are only logged, since the answer is paid for.

        Args:
            handle: The handle of the model that answered.
            usage: The tokens. Without any, nothing is stored.
        """
        if not usage.total_tokens:
            return
        expense = Expense(
            organization_id=self.organization_id,
            purpose=self.purpose,
            model=handle,
            usage=usage,
            agent_id=self.agent_id,
            user_id=self.user_id,
        )
        writing = asyncio.ensure_future(self._write(expense))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    async def _write(self, expense: Expense) -> None:
        try:
            await self.store.write(lambda tx: _add(tx, expense))
        except DatabaseFailed as error:
            log.warning(
                "tokens of answers are missing in the ledger",
                extra={"tokens": expense.usage.total_tokens, "reason": error},
            )


def _add(tx: Transaction, expense: Expense) -> None:
    """Store the expense, without its user if the user was erased while the model answered."""
    user_id = expense.user_id
    if user_id and not users.existing_ids(tx, expense.organization_id, [user_id]):
        expense = replace(expense, user_id=None)
    runs.add_expense(tx, expense)
