"""AG-UI, the protocol by which user interfaces run an agent and show its events."""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.ag_ui.routes",),
)
