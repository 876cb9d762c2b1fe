"""Settings of the vector databases."""

from pydantic import AliasChoices, model_validator
from pydantic_settings import SettingsConfigDict

from ricordo.setting_types import PREFIX, Address, FeatureSettings, Folder, Host, Key, about


class VectorSettings(FeatureSettings):
    """Vector databases, by their usual variables.

    One is called only for archives that use it, and for messages if `message_vectors` names it.
    """

    model_config = SettingsConfigDict(env_prefix="", populate_by_name=True)

    turbopuffer_api_key: Key | None = about("Key for Turbopuffer (needs `turbopuffer`).")
    turbopuffer_region: str | None = about(
        "Region of Turbopuffer, such as aws-us-east-1; required with its key.",
        pattern=r"^[a-z0-9-]+$",
    )
    turbopuffer_base_url: Address | None = about("Address of Turbopuffer, instead of a region.")
    pinecone_api_key: Key | None = about("Key for Pinecone (needs the extra `pinecone`).")
    pinecone_index_host: Host | None = about(
        "Host of a Pinecone index with the cosine metric, as its page shows it; required with its "
        "key."
    )
    qdrant_url: Address | None = about("Address of a Qdrant server (needs the extra `qdrant`).")
    qdrant_api_key: Key | None = about("Key for the Qdrant server, if it requires one.")
    qdrant_path: Folder | None = about(
        "Folder for Qdrant without a server, for up to some ten thousand vectors (needs `qdrant`)."
    )
    namespace_prefix: str = about(
        "Prefix of every namespace there; choose one for each server that shares an account.",
        "ricordo",
        validation_alias=AliasChoices(PREFIX.lower() + "vector_prefix"),
        pattern=r"^[A-Za-z0-9_-]{1,32}$",
    )

    @model_validator(mode="after")
    def _check(self) -> "VectorSettings":
        # Turbopuffer's client itself reads the region, and refuses to start with both.
        for name, other in (
            ("turbopuffer_region", "turbopuffer_base_url"),
            ("qdrant_url", "qdrant_path"),
        ):
            if getattr(self, name) and getattr(self, other):
                raise ValueError(
                    f"{name.upper()} and {other.upper()} are both set. Set one of them."
                )
        return self
