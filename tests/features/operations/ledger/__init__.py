"""The ledger: costs and budgets."""
