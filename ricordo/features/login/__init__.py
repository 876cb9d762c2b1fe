"""Login of people with an OpenID Connect provider: a browser gets a session of twelve hours in a cookie, with the role user."""

from typing import Any


class LoginPlugin:
    def routes(self) -> list[Any]:
        return ["ricordo.features.login.routes"]


plugin = LoginPlugin()
