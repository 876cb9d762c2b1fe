"""Egress policies: people choose the providers that may see a part of their memory.

The labels and the check are in the core (`domain/egress.py`, `llm/egress.py`). So policies also
hold on a server without this feature. The feature has the routes to set policies and to preview
their effect.
"""

from ricordo.plugins import Feature

feature = Feature(
    requires=("files",),
    routes=("ricordo.features.egress.routes",),
)
