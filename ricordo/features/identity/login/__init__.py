"""Login with an OpenID Connect provider.

A browser gets a session of twelve hours in a cookie, with the role user.
"""

from typing import Any


class LoginPlugin:
    def routes(self) -> list[Any]:
        return ["ricordo.features.identity.login.routes"]


plugin = LoginPlugin()
