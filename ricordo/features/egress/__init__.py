"""Egress policies: people choose the providers that may see a part of their memory.

The labels and the check are in the core (`domain/egress.py`, `llm/egress.py`). So a policy also
holds on a server without this feature. The feature sets policies, and previews their effect.
"""

from ricordo.plugins import Feature

feature = Feature(
    requires=("files",),
    routes=("ricordo.features.egress.routes",),
)
