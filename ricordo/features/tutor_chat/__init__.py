"""`POST /chat/stream`: a chat of a student with a tutor, as clients of YouLab's first server send it."""

from typing import Any


class TutorChatPlugin:
    """Adds the two routes; chats are conversations as those of OpenAI's clients are."""

    requires = ("courses", "memories", "openai_api")

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter(
                "ricordo.features.tutor_chat.routes", ("/chat", "/health"), open=("/health",)
            )
        ]


plugin = TutorChatPlugin()
