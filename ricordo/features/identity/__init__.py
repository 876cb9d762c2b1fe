"""Callers: accounts with keys, access tokens of browsers, and the login page."""

from ricordo.plugins import Commands, Feature

feature = Feature(
    requires=("memory_care",),
    routes=(
        "ricordo.features.identity.access_tokens.routes",
        "ricordo.features.identity.accounts.keys",
        "ricordo.features.identity.accounts.users",
        "ricordo.features.identity.accounts.organizations",
        "ricordo.features.identity.accounts.identities",
        "ricordo.features.identity.login.routes",
    ),
    commands=(
        Commands(
            "key",
            "ricordo.features.identity.accounts.cli:key",
            help="API keys: who may ask this server, and what.",
        ),
        Commands(
            "user",
            "ricordo.features.identity.accounts.cli:user",
            help="The people whom memory is about, and who have keys.",
        ),
        Commands(
            "organization",
            "ricordo.features.identity.accounts.cli:organization",
            help="Organizations: worlds of their own on one server.",
        ),
    ),
)
