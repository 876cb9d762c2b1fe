"""Settings of OpenAI's HTTP API."""

from typing import Literal

from pydantic import SecretStr

from ricordo.setting_types import FeatureSettings, about


class OpenAIApiSettings(FeatureSettings):
    """OpenAI's HTTP API, by which Open WebUI and others talk with agents."""

    openwebui_secret: SecretStr | None = about(
        "Secret that Open WebUI signs its users with (its FORWARD_USER_INFO_HEADER_JWT_SECRET). "
        "With it a user is known by the signed header alone, and never by the plain ones."
    )
    openai_leaving: Literal["finish", "stop"] = about(
        "What happens to a turn whose client of OpenAI's HTTP API closes the stream: finish it, so "
        "that its answer is in the conversation, or stop it.",
        "finish",
    )
