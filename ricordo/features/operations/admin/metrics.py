"""Metrics in the text format of Prometheus.

`prometheus_text.py` writes them.
"""

from typing import Any

from fastapi import Response

from ricordo.api.call import RequestContext
from ricordo.api.routing import Routes, needs
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope
from ricordo.errors import NotFound
from ricordo.features.operations.admin.state import operations_of
from ricordo.storage import jobs, proposals
from ricordo.storage.engine.store import Transaction
from ricordo.storage.jobs import Queue

router = Routes(tags=["health"], scope="agents")
_TEXT: Any = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses=_TEXT)
@needs("admin")
async def metrics(context: RequestContext) -> Response:
    """Metrics of this process and of the database's queue, for Prometheus."""
    if context.scope.organization_id != LOCAL_ORGANIZATION:
        raise NotFound(
            "Metrics are about the whole server, so only its first organization may see them."
        )

    def read(tx: Transaction) -> tuple[Queue, int, dict[str, tuple[str, float]]]:
        gauges: dict[str, tuple[str, float]] = {}
        for read_gauges in context.runtime.plugins.gauges():
            gauges |= read_gauges(tx)
        return jobs.read_queue(tx, None), proposals.count_waiting(tx, Scope()), gauges

    queue, waiting, more_gauges = await context.store.read(read)
    gauges = {
        "ricordo_turns_running": (
            "Turns that run in this process.",
            float(len(context.runtime.live)),
        ),
        "ricordo_proposals_waiting": (
            "Changes of memory that wait for their owners.",
            float(waiting),
        ),
        **more_gauges,
    }
    # Import it here: its library takes 1% of the time of a server's start, and few servers are
    # asked for metrics.
    from ricordo.features.operations.admin.prometheus_text import write_metrics

    text = write_metrics(
        context.request.app.request_counts,
        operations_of(context.runtime).turn_counts,
        gauges,
        queue,
    )
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
