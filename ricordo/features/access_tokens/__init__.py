"""Access tokens: short-lived keys for pages in browsers, each limited to some agents and to what may be done with them."""

from typing import Any


class AccessTokensPlugin:
    """Makes, lists and deletes the tokens; `api/guard.py` knows what they reach."""

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter("ricordo.features.access_tokens.routes", ("/v1/client-side-access-tokens",))
        ]


plugin = AccessTokensPlugin()
