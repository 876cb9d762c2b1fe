"""Minor routes of the retired Letta V1 server that clients still call.

They are for tags, environments, and an answer without a turn.
"""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.letta.routes",),
)
