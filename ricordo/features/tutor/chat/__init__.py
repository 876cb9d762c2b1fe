"""`POST /chat/stream`: a chat of a student with a tutor, as clients of YouLab's first server send it."""

from typing import Any


class TutorChatPlugin:
    """Adds the two routes; chats are conversations as those of OpenAI's clients are."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.tutor.chat.routes"]


plugin = TutorChatPlugin()
