"""Questions about a user, answered from all stored data with citations.

The answer cites messages and lines of memory.
"""

from typing import Any

# Other services that answer questions, by name: modules with `is_on()` and
# `answer(user_id, question)`. They are imported at the first question.
ANSWERERS: dict[str, str] = {}


class AskPlugin:
    """Adds the route and the tool."""

    def routes(self) -> list[Any]:
        return ["ricordo.features.knowledge.ask.routes"]

    def tools(self) -> list[Any]:
        from ricordo.features.knowledge.ask.tools import query_student
        from ricordo.tools.toolbox import ServerTool

        return [
            ServerTool(query_student, "letta_builtin", brings_untrusted=True, is_read_only=True)
        ]


plugin = AskPlugin()
