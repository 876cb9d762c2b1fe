"""Agent cards: an agent's description and abilities, without its memory."""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.agent_cards.routes",),
)
