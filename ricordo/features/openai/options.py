"""Settings of OpenAI's HTTP API."""

from typing import Literal

from pydantic import SecretStr

from ricordo.setting_types import FeatureSettings, about


class OpenAIApiSettings(FeatureSettings):
    """OpenAI's HTTP API, by which Open WebUI and others talk with agents."""

    openwebui_secret: SecretStr | None = about(
        "Secret with which Open WebUI signs its users (its FORWARD_USER_INFO_HEADER_JWT_SECRET). "
        "If set, only the signed header identifies the user, not the plain ones."
    )
    openai_leaving: Literal["finish", "stop"] = about(
        "What to do with a turn if an OpenAI client closes its stream: finish it and store the "
        "answer, or stop it.",
        "finish",
    )
