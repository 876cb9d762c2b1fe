"""OpenAI's HTTP API: agents as models of chat completions and responses.

It serves any OpenAI client, and Open WebUI.
"""

from typing import Any


class OpenAIPlugin:
    """The routes for OpenAI's clients, and the table of their chats."""

    def tables(self) -> list[Any]:
        from ricordo.features.openai_api.queries import openai_chats

        return [openai_chats]

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        paths = ("/v1/chat/completions", "/v1/models", "/v1/embeddings")
        return [
            LazyRouter("ricordo.features.openai_api.routes", paths),
            LazyRouter("ricordo.features.openai_api.responses", ("/v1/responses",)),
            LazyRouter("ricordo.features.openai_api.voice", ("/v1/voice-beta",)),
        ]


plugin = OpenAIPlugin()
