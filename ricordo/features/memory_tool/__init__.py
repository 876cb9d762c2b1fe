"""Anthropic's memory tool over the blocks of a user."""

from ricordo.plugins import Feature

feature = Feature(
    routes=("ricordo.features.memory_tool.routes",),
)
