"""OpenAI's HTTP API: agents as models of chat completions and responses.

It serves any OpenAI client, and Open WebUI.
"""

from typing import Any


class OpenAIPlugin:
    """The routes for OpenAI's clients, and the table of their chats."""

    def tables(self) -> list[Any]:
        from ricordo.features.openai.queries import openai_chats

        return [openai_chats]

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.openai.routes",
            "ricordo.features.openai.responses",
            "ricordo.features.openai.voice",
        ]


plugin = OpenAIPlugin()
