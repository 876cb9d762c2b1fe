"""Access tokens: short-lived keys for pages in browsers.

Each is limited to some agents and actions.
"""

from typing import Any


class AccessTokensPlugin:
    """Creates, lists and deletes the tokens; `api/guard.py` checks their limits."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.identity.access_tokens.routes"]


plugin = AccessTokensPlugin()
