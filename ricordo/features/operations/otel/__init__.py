"""OpenTelemetry: requests, turns, model calls and tool calls as spans, sent to the collector that the environment names."""

import os
from collections.abc import Callable
from typing import Any

from ricordo.errors import Unavailable

# OpenTelemetry's own variables, as all its programs read them. Without one of them nothing is imported, and nothing is sent.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_on() -> bool:
    return (
        any(map(os.environ.get, ENDPOINTS))
        and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


class OtelPlugin:
    """Puts middleware around requests, and reads a turn's stored steps when it has ended; neither where it is off."""

    def middleware(self) -> list[Any]:
        """Return what traces requests. Raises Unavailable where the extra is missing."""
        if not is_on():
            return []
        try:
            from ricordo.features.operations.otel.spans import RequestSpans
        except ImportError as error:
            words = 'OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need an extra: pip install "ricordo[otel]"'
            raise Unavailable(words) from error
        return [RequestSpans]

    @property
    def after_turn(self) -> Callable[..., Any]:
        """What makes the spans of a turn; no attribute where it is off, so that turns have nothing to call."""
        if not is_on():
            raise AttributeError("after_turn")
        from ricordo.features.operations.otel.spans import trace_turn

        return trace_turn

    async def at_end(self, _settings: Any) -> None:
        """Send what waits, for a few seconds at most."""
        if is_on():
            import asyncio

            from ricordo.features.operations.otel.spans import provider

            await asyncio.to_thread(provider().force_flush, 5_000)


plugin = OtelPlugin()
