"""Callers: accounts with keys, invitations, access tokens of browsers, and logins."""

from ricordo.domain.scope import ADMIN
from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    requires=("memory_care",),
    tables=("ricordo.features.identity.sign_in_links.queries:sign_in_links",),
    routes=(
        "ricordo.features.identity.access_tokens.routes",
        "ricordo.features.identity.accounts.keys",
        "ricordo.features.identity.accounts.users",
        "ricordo.features.identity.accounts.organizations",
        "ricordo.features.identity.accounts.identities",
        "ricordo.features.identity.login.routes",
        "ricordo.features.identity.sign_in_links.routes",
        "ricordo.features.identity.sign_in_links.pages",
    ),
    jobs=("ricordo.features.identity.sign_in_links.jobs:HANDLERS",),
    open="ricordo.features.identity.sign_in_links.pages:open_limits",
    pages=(PluginPage("Invitations", "/ui/invitations", (ADMIN,)),),
    commands=(
        Commands(
            "key",
            "ricordo.features.identity.accounts.cli:key",
            help="API keys and their rights.",
        ),
        Commands(
            "user",
            "ricordo.features.identity.accounts.cli:user",
            help="The users: people with memory and keys.",
        ),
        Commands(
            "organization",
            "ricordo.features.identity.accounts.cli:organization",
            help="Organizations, which share a server but no data.",
        ),
    ),
)
