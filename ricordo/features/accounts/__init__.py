"""Accounts: API keys, users, organizations, and identities of older clients.

They are managed over HTTP and on the command line.
"""

from typing import Any

from ricordo.plugins import Commands


class AccountsPlugin:
    """The routes and commands of accounts; `erasure` deletes a user."""

    requires = ("erasure",)

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter("ricordo.features.accounts.keys", ("/v1/keys",)),
            LazyRouter("ricordo.features.accounts.users", ("/v1/users",)),
            LazyRouter("ricordo.features.accounts.organizations", ("/v1/organizations",)),
            LazyRouter(
                "ricordo.features.accounts.identities",
                ("/v1/identities", "/v1/agents/*/identities", "/v1/blocks/*/identities"),
            ),
        ]

    def commands(self) -> list[Commands]:
        return [Commands("", "ricordo.features.accounts.cli")]


plugin = AccountsPlugin()
