"""`POST /chat/stream`: a student's chat with a tutor.

The format is that of YouLab's first server, so that its clients work.
"""

from typing import Any


class TutorChatPlugin:
    """Adds the two routes; a chat is stored as OpenAI-compatible chats are."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.tutor.chat.routes"]


plugin = TutorChatPlugin()
