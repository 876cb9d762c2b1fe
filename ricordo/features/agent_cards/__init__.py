"""Agent cards: what an agent is and can do, without a word of its memory."""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.agent_cards.routes",),
)
