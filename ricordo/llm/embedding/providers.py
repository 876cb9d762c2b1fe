"""Embedding models that are asked through pydantic-ai: Google AI's. Its SDK is imported at the first question."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ricordo.domain.model import EmbeddingInfo, EmbeddingPurpose
from ricordo.llm.connections import Connections
from ricordo.llm.embedding.metering import count
from ricordo.llm.embedding.remote import RemoteEmbedder
from ricordo.llm.policy import CallPolicy
from ricordo.llm.provider_sdks import need
from ricordo.llm.providers import our_error

if TYPE_CHECKING:
    from pydantic_ai.embeddings.base import EmbeddingModel


def google_embedder(
    info: EmbeddingInfo, connections: Connections, policy: CallPolicy, *, api_key: str | None
) -> RemoteEmbedder:
    """An embedding model of Google AI. Asking it raises Unavailable without the extra."""
    building = asyncio.Lock()
    built: list[EmbeddingModel] = []

    def build() -> "EmbeddingModel":
        need("google.genai", "google")
        from pydantic_ai.embeddings.google import GoogleEmbeddingModel
        from pydantic_ai.providers.google import GoogleProvider

        provider = GoogleProvider(api_key=api_key, base_url=info.endpoint, http_client=connections.client())
        return GoogleEmbeddingModel(info.name, provider=provider)

    async def ask(texts: list[str], purpose: EmbeddingPurpose) -> Sequence[Any]:
        async with building:
            if not built:
                # The import takes a second or two: other turns go on meanwhile.
                built.append(await asyncio.to_thread(build))
        try:
            result = await built[0].embed(texts, input_type=purpose)
        except Exception as error:
            raise our_error(info.provider, error) from error
        count(info.handle, result.usage.input_tokens)
        return result.embeddings

    return RemoteEmbedder(info, policy, ask)
