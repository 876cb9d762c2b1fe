"""Health checks and Prometheus metrics, for the operator of the server."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ricordo.domain.run import Run
    from ricordo.runtime import Runtime


class AdminPlugin:
    """Three routes, and a count of turns that end."""

    def routes(self) -> list[Any]:
        return [
            "ricordo.features.operations.admin.routes",
            "ricordo.features.operations.admin.metrics",
        ]

    async def after_turn(self, runtime: "Runtime", run: "Run") -> None:
        from ricordo.features.operations.admin.turn_counts import counts_of

        counts_of(runtime.store).note(run)


plugin = AdminPlugin()
