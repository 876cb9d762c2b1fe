"""Honcho: it gets the messages of users and agents, and answers questions about users.

It is used only if it is configured.
"""

from typing import TYPE_CHECKING, Any

from ricordo.features.knowledge.ask import ANSWERERS

if TYPE_CHECKING:
    from ricordo.domain.run import Run
    from ricordo.runtime import Runtime


class HonchoPlugin:
    """Sends messages to Honcho after each turn, if it is configured.

    Messages that a kill kept back are sent within minutes.
    """

    def tables(self) -> list[Any]:
        from ricordo.features.knowledge.honcho.queries import honcho_sessions

        return [honcho_sessions]

    def jobs(self) -> list[Any]:
        from ricordo.features.knowledge.honcho.jobs import CATCH_UP, SEND

        return [SEND, CATCH_UP]

    async def after_turn(self, runtime: "Runtime", run: "Run") -> None:
        from ricordo.features.knowledge.honcho.jobs import add_send_job

        await add_send_job(runtime, run)

    async def at_erasure(self, runtime: "Runtime", user_id: str) -> list[str]:
        """Delete the user's sessions at Honcho; return remarks for the receipt."""
        from ricordo.features.knowledge.honcho.jobs import forget

        return await forget(runtime, user_id)


plugin = HonchoPlugin()
ANSWERERS["honcho"] = "ricordo.features.knowledge.honcho.service"
