"""The ledger: tokens, their cost, and daily budgets of agents.

It has an API and a command.
"""
