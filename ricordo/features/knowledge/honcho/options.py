"""Settings of Honcho."""

from typing import Literal

from ricordo.setting_types import Address, FeatureSettings, Key, about


class HonchoSettings(FeatureSettings):
    """The Honcho server. It is used only if an address or an environment is set."""

    honcho_url: Address | None = about(
        "Address of a Honcho server, which gets users' conversations and answers questions "
        "about them."
    )
    honcho_environment: Literal["local", "production"] | None = about(
        "Instead of an address: local (http://localhost:8000), or production, the hosted service."
    )
    honcho_workspace_id: str = about(
        "The workspace there.", "youlab", min_length=1, max_length=100, pattern=r"^[\w-]+$"
    )
    honcho_api_key: Key | None = about("API key for Honcho, which production needs.")

    @property
    def is_on(self) -> bool:
        return bool(self.honcho_url or self.honcho_environment)

    @property
    def shown(self) -> str:
        """Return the server's name for people."""
        return self.honcho_url or f"{self.honcho_environment}, its own service"
