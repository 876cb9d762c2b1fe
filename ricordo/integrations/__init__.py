"""Outside systems, one removable folder each. They come in through the same hooks as anyone's plugin.

No module here imports a client library before its first use, and none calls a service that is not configured.
"""

from ricordo.integrations.dolt import DoltRemotes
from ricordo.integrations.git import GitRemotes
from ricordo.integrations.pinecone import PineconeIndex
from ricordo.integrations.qdrant import QdrantIndex
from ricordo.integrations.turbopuffer import TurbopufferIndex
from ricordo.memory.remotes import RemoteKind
from ricordo.search.vector_index import VectorIndex
from ricordo.settings import VectorSettings


class IntegrationsPlugin:
    """The plugin that offers the vector services whose variables are set, and the remotes of memory."""

    def vector_indexes(self, settings: VectorSettings) -> list[VectorIndex]:
        """An index for each configured service; none is called before an archive that chose it is written or searched."""
        indexes: list[VectorIndex] = []
        key = settings.turbopuffer_api_key
        if key and (settings.turbopuffer_region or settings.turbopuffer_base_url):
            place = settings.turbopuffer_base_url or TurbopufferIndex.address(settings.turbopuffer_region or "")
            indexes.append(TurbopufferIndex(key.get_secret_value(), place, prefix=settings.namespace_prefix))
        key, host = settings.pinecone_api_key, settings.pinecone_index_host
        if key and host:
            indexes.append(PineconeIndex(key.get_secret_value(), host, prefix=settings.namespace_prefix))
        place = settings.qdrant_url or (str(settings.qdrant_path) if settings.qdrant_path else "")
        if place:
            key = settings.qdrant_api_key
            secret = key.get_secret_value() if key else None
            indexes.append(QdrantIndex(place, secret, prefix=settings.namespace_prefix))
        return indexes

    def memory_remotes(self) -> list[RemoteKind]:
        """The kinds of places that memory can be kept in step with."""
        return [GitRemotes(), DoltRemotes()]


plugin = IntegrationsPlugin()
