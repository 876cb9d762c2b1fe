"""Health checks and Prometheus metrics, for the operator of the server."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ricordo.domain.run import Run
    from ricordo.runtime import Runtime

_HEALTH = ("/v1/health/live", "/v1/health/ready")


class AdminPlugin:
    """Three routes, and a count of turns that end."""

    def routes(self) -> list[Any]:
        from ricordo.api.routing import LazyRouter

        return [
            LazyRouter("ricordo.features.admin.routes", _HEALTH, open=_HEALTH),
            LazyRouter("ricordo.features.admin.metrics", ("/metrics",)),
        ]

    async def after_turn(self, runtime: "Runtime", run: "Run") -> None:
        from ricordo.features.admin.turn_counts import counts_of

        counts_of(runtime.store).note(run)


plugin = AdminPlugin()
