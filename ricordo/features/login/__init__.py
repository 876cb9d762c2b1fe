"""Login with an OpenID Connect provider.

A browser gets a session of twelve hours in a cookie, with the role user.
"""

from typing import Any


class LoginPlugin:
    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        # Without a key a login begins; to end one, there has to be one.
        return [
            LazyRouter(
                "ricordo.features.login.routes",
                ("/login", "/logout"),
                open=("/login", "/login/callback"),
            )
        ]


plugin = LoginPlugin()
