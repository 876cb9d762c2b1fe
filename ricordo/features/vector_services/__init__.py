"""External vector services: Turbopuffer, Pinecone and Qdrant.

Each service is offered if its variables are set.
"""

from ricordo.plugins import Feature

feature = Feature(
    settings=("ricordo.features.vector_services.options:VectorSettings",),
    vector_indexes=("ricordo.features.vector_services.adapters:configured_indexes",),
)
