"""Access tokens: short-lived keys for pages in browsers, each limited to some agents and to what may be done with them."""

from typing import Any


class AccessTokensPlugin:
    """Makes, lists and deletes the tokens; `api/guard.py` knows what they reach."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.access_tokens.routes"]


plugin = AccessTokensPlugin()
