"""Settings of the sync with Open WebUI."""

from typing import Literal

from ricordo.setting_types import Address, FeatureSettings, Key, about


class OpenWebUISettings(FeatureSettings):
    """The Open WebUI with which users' workspaces and memory are synced."""

    openwebui_url: Address | None = about(
        "Address of Open WebUI, to sync users' workspaces with its knowledge "
        "and their memory with its notes."
    )
    openwebui_api_key: Key | None = about(
        "API key (sk-…) of an administrator of Open WebUI, for this sync."
    )
    openwebui_deleted_chats: Literal["list", "delete"] = about(
        "What to do with a chat that was deleted in Open WebUI: list it as deleted there, or "
        "delete it here too.",
        "list",
    )
