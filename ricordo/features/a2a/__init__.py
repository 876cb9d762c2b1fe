"""A2A, the protocol by which agents of other programs talk with agents of this server."""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.a2a.routes",),
)
