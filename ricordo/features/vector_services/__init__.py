"""External vector services: Turbopuffer, Pinecone and Qdrant.

Each is offered if its variables are set.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ricordo.search.vector_index import VectorIndex
    from ricordo.settings import VectorSettings


class VectorServicesPlugin:
    def vector_indexes(self, settings: "VectorSettings") -> "list[VectorIndex]":
        """Return an index for each configured service.

        A service is called only if an archive that chose it is written or searched.
        """
        from ricordo.features.vector_services.adapters import (
            PineconeIndex,
            QdrantIndex,
            TurbopufferIndex,
        )

        indexes: list[VectorIndex] = []
        prefix = settings.namespace_prefix
        key = settings.turbopuffer_api_key
        if key and (settings.turbopuffer_region or settings.turbopuffer_base_url):
            address = (
                settings.turbopuffer_base_url
                or f"https://{settings.turbopuffer_region}.turbopuffer.com"
            )
            indexes.append(TurbopufferIndex(key.get_secret_value(), address, prefix=prefix))
        key = settings.pinecone_api_key
        host = settings.pinecone_index_host
        if key and host:
            indexes.append(PineconeIndex(key.get_secret_value(), host, prefix=prefix))
        location = settings.qdrant_url
        if not location and settings.qdrant_path:
            location = str(settings.qdrant_path)
        if location:
            key = settings.qdrant_api_key
            indexes.append(
                QdrantIndex(location, key.get_secret_value() if key else None, prefix=prefix)
            )
        return indexes


plugin = VectorServicesPlugin()
