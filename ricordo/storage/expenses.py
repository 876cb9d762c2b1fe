"""The ledger: tokens that were spent outside of the steps of turns, which count their own."""

from sqlalchemy import insert

from ricordo.domain.ledger import Expense
from ricordo.storage.rows import usage_values
from ricordo.storage.store import Transaction
from ricordo.storage.tables import expenses

_INSERT = insert(expenses)


def add(tx: Transaction, expense: Expense) -> None:
    """Note what was spent."""
    tx.run(
        _INSERT,
        {
            "organization_id": expense.organization_id,
            "agent_id": expense.agent_id,
            "user_id": expense.user_id,
            "purpose": expense.purpose,
            "model": expense.model,
            "created_at": expense.created_at or tx.clock.now(),
            **usage_values(expense.usage),
        },
    )
