"""The account that pays for the answers of chat models."""

import asyncio
import logging
from dataclasses import dataclass

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
        writing = asyncio.ensure_future(self._write(handle, usage))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    def add(self, tx: Transaction, handle: str, usage: Usage) -> None:
        """Store the tokens of answers in this transaction.

        A user who was erased while the model answered is left out.

        Args:
            tx: The transaction.
            handle: The handle of the model that answered.
            usage: The tokens.
        """
        user_id = self.user_id
        if user_id and not users.existing_ids(tx, self.organization_id, [user_id]):
            user_id = None
        expense = Expense(
            organization_id=self.organization_id,
            purpose=self.purpose,
            model=handle,
            usage=usage,
            agent_id=self.agent_id,
            user_id=user_id,
        )
        runs.add_expense(tx, expense)

    async def _write(self, handle: str, usage: Usage) -> None:
        try:
            await self.store.write(lambda tx: self.add(tx, handle, usage))
        except DatabaseFailed as error:
            log.warning(
                "tokens of answers are missing in the ledger",
                extra={"tokens": usage.total_tokens, "reason": error},
            )
