"""Questions about a user, answered from all that is kept of them, with the messages and lines of memory that the answer is from."""

from typing import Any

# Who else answers questions, by their names: modules with `is_on()` and `answer(user_id, question)`, imported when asked first.
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
