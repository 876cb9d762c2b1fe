"""OpenTelemetry: requests, turns, model calls and tool calls as spans.

They are sent to the collector that the environment names.
"""

import os
from types import ModuleType

from starlette.types import ASGIApp

from ricordo.errors import Unavailable

# The standard variables of OpenTelemetry. If none of them is set, nothing is imported and nothing
# is sent.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_on() -> bool:
    """Return True if the environment names a collector, unless it disables OpenTelemetry."""
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return any(map(os.environ.get, ENDPOINTS)) and not is_disabled


def load_spans() -> ModuleType:
    """Return the module that makes spans. Raises Unavailable if the extra is missing."""
    try:
        # An optional extra, which takes a third of a second.
        from ricordo.features.operations.otel import spans
    except ImportError as error:
        raise Unavailable(
            "OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, which need an extra: "
            'pip install "ricordo[otel]"'
        ) from error
    return spans


def trace_requests(app: ASGIApp) -> ASGIApp:
    """Return the app with spans around its requests, or unchanged if tracing is off.

    Args:
        app: The whole application.

    Raises:
        Unavailable: Tracing is on, but its extra is missing.
    """
    if not is_on():
        return app
    traced: ASGIApp = load_spans().RequestSpans(app)
    return traced
