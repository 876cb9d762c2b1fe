"""OpenTelemetry: requests, turns, model calls and tool calls as spans.

They are sent to the collector that the environment names.
"""

import os
from collections.abc import Callable
from typing import Any

from ricordo.errors import Unavailable

# OpenTelemetry's own variables, as all its programs read them. Without one of them nothing is
# imported, and nothing is sent.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_on() -> bool:
    """Return True if the environment names a collector and does not disable OpenTelemetry."""
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return any(map(os.environ.get, ENDPOINTS)) and not is_disabled


class OtelPlugin:
    """Traces requests by middleware, and turns by their stored steps."""

    def middleware(self) -> list[Any]:
        """Return the middleware that traces requests.

        Raises Unavailable if the extra is missing.
        """
        if not is_on():
            return []
        try:
            from ricordo.features.operations.otel.spans import RequestSpans
        except ImportError as error:
            raise Unavailable(
                "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need an extra: "
                'pip install "ricordo[otel]"'
            ) from error
        return [RequestSpans]

    @property
    def after_turn(self) -> Callable[..., Any]:
        """Return the hook that makes the spans of a turn.

        Raises AttributeError if tracing is off, so that turns have no hook to call.
        """
        if not is_on():
            raise AttributeError("after_turn")
        from ricordo.features.operations.otel.spans import trace_turn

        return trace_turn

    async def at_end(self, _settings: Any) -> None:
        """Send the waiting spans, within five seconds."""
        if is_on():
            import asyncio

            from ricordo.features.operations.otel.spans import provider

            await asyncio.to_thread(provider().force_flush, 5_000)


plugin = OtelPlugin()
