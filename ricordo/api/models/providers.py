"""Request and response models of an organization's own providers. No answer holds their keys."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from ricordo.api.models.base import RequestModel, ResponseModel, Timestamp
from ricordo.llm.provider_table import Keys


def _require_name(name: str) -> str:
    if "/" in name or not name.isprintable() or name.strip() != name:
        raise ValueError("must not hold a slash, a line's end, or a space at its ends: it begins its models' handles")
    return name


Line = Annotated[str, Field(max_length=2000)]
Key = Annotated[SecretStr, Field(max_length=10_000)]


class ProviderUpdate(RequestModel):
    """Keys, and where they are for. Empty texts count as left out."""

    api_key: Key | None = None
    access_key: Key | None = None
    base_url: Line | None = None
    region: Line | None = None
    api_version: Annotated[str, Field(max_length=50, pattern=r"^[A-Za-z0-9.-]+$")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_texts(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if each != ""} if isinstance(value, dict) else value

    def keys(self, before: Keys | None = None) -> Keys:
        before = before or Keys()
        return Keys(_plain(self.api_key) or before.api_key, _plain(self.access_key) or before.access_key)


class ProviderCheckRequest(ProviderUpdate):
    """Keys to try."""

    provider_type: str = Field(max_length=50)


class ProviderRequest(ProviderCheckRequest):
    """A provider to add."""

    name: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_require_name)]


class ProviderResponse(ResponseModel):
    """A provider with a key of the organization's own. The fields for keys are always null."""

    id: str
    name: str
    provider_type: str
    provider_category: Literal["byok"] = "byok"
    base_url: str | None
    region: str | None
    api_version: str | None
    api_key: None = None
    access_key: None = None
    api_key_enc: None = None
    access_key_enc: None = None
    organization_id: str
    created_at: Timestamp
    updated_at: Timestamp
    last_synced: Timestamp | None


def _plain(key: SecretStr | None) -> str | None:
    return str(key.get_secret_value()) if key else None
