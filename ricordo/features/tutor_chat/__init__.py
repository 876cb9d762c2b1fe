"""`POST /chat/stream`: a chat of a student with a tutor, as clients of YouLab's first server send it."""

from typing import Any


class TutorChatPlugin:
    """Adds the two routes; chats are conversations as those of OpenAI's clients are."""

    requires = ("courses", "memories", "openai_api")

    def routes(self) -> list[Any]:
        return ["ricordo.features.tutor_chat.routes"]


plugin = TutorChatPlugin()
