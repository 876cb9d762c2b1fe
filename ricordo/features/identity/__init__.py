"""Who calls: accounts with keys, access tokens of browsers, and the login page."""

PARTS = ("access_tokens", "accounts", "login")
REQUIRES = ("memory_care",)
