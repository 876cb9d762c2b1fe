"""Honcho, where it is configured: it gets what users and agents say to each other, and answers questions about a user."""

from typing import TYPE_CHECKING, Any

from ricordo.features.knowledge import ask

if TYPE_CHECKING:
    from ricordo.domain.run import Run
    from ricordo.runtime import Runtime


class HonchoPlugin:
    """Sends messages after each turn, and what a kill kept back within minutes. Without settings it does nothing."""

    def tables(self) -> list[Any]:
        from ricordo.features.knowledge.honcho.queries import honcho_sessions

        return [honcho_sessions]

    def jobs(self) -> list[Any]:
        from ricordo.features.knowledge.honcho.jobs import CATCH_UP, SEND

        return [SEND, CATCH_UP]

    async def after_turn(self, runtime: "Runtime", run: "Run") -> None:
        from ricordo.features.knowledge.honcho.jobs import ask_to_send

        await ask_to_send(runtime, run)

    async def at_erasure(self, runtime: "Runtime", user_id: str) -> list[str]:
        """Delete the user's sessions there; returns what remains there, for the receipt."""
        from ricordo.features.knowledge.honcho.jobs import forget

        return await forget(runtime, user_id)


plugin = HonchoPlugin()
ask.ANSWERERS["honcho"] = "ricordo.features.knowledge.honcho.service"
