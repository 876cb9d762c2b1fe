"""Egress policies: people choose which providers of models may see which part of memory.

The labels and the check are in the core (`domain/egress.py`, `llm/egress.py`), so a policy holds
also on a server without this feature. The feature sets policies, and shows what one withholds.
"""

from ricordo.plugins import Feature

feature = Feature(
    requires=("files",),
    routes=("ricordo.features.egress.routes",),
)
