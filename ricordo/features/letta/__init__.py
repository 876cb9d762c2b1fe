"""Minor routes of the retired Letta V1 server that clients still call.

They concern tags, environments, and answers without a turn.
"""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.letta.routes",),
)
