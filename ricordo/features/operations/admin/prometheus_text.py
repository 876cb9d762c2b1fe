"""The text format of Prometheus, written by its library.

Labels are routes, statuses, kinds and reasons, but never ids, names or content.
"""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from ricordo import __version__
from ricordo.domain.request_counts import RequestCounts
from ricordo.features.operations.admin.state import TurnCounts
from ricordo.storage.jobs import Queue


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield from self._families


def write_metrics(
    requests: RequestCounts, turns: TurnCounts, gauges: dict[str, tuple[str, float]], queue: Queue
) -> bytes:
    """Return all metrics as text.

    Args:
        requests: The counts and times of this process's requests.
        turns: The counts and times of this process's turns.
        gauges: By name, the help text and the present number of a metric without labels.
        queue: The jobs in the database.

    Returns:
        UTF-8 in Prometheus's text format 0.0.4.
    """
    families = [
        _gauge(
            "ricordo_info", "The version of Ricordo that runs.", ["version"], [([__version__], 1.0)]
        ),
        *(
            _gauge(name, help_text, [], [([], reading)])
            for name, (help_text, reading) in gauges.items()
        ),
        _gauge(
            "ricordo_jobs",
            "Jobs in the database, by kind and status.",
            ["kind", "status"],
            [
                ([kind, status], count)
                for kind, by in queue.depth.items()
                for status, count in by.items()
            ],
        ),
        _gauge(
            "ricordo_jobs_oldest_seconds",
            "Seconds that the oldest due job has waited.",
            [],
            [([], queue.waits / 1e6)],
        ),
        *_of_requests(requests),
        *_of_turns(turns),
    ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)


def _of_requests(requests: RequestCounts) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "ricordo_requests", "Requests by route and status.", labels=["method", "route", "status"]
    )
    for (method, route, status), count in requests.answers.items():
        answers.add_metric([method, route, str(status)], count)
    yield answers
    times = HistogramMetricFamily(
        "ricordo_request_seconds",
        "Seconds until answers were complete; a stream counts until its end.",
        labels=["method", "route"],
    )
    for labels, histogram in requests.times.items():
        times.add_metric(list(labels), histogram.cumulated(), histogram.sum)
    yield times


def _of_turns(turns: TurnCounts) -> Iterator[Metric]:
    turn_family = CounterMetricFamily(
        "ricordo_turns",
        "Turns that ended, by purpose and stop reason.",
        labels=["purpose", "stop_reason"],
    )
    for labels, count in turns.ended.items():
        turn_family.add_metric(list(labels), count)
    yield turn_family
    tokens = CounterMetricFamily(
        "ricordo_tokens",
        "Tokens that turns used; cached tokens are also counted as prompt tokens.",
        labels=["kind"],
    )
    for kind, count in turns.tokens.items():
        tokens.add_metric([kind], count)
    yield tokens
    yield CounterMetricFamily("ricordo_steps", "Calls of models in turns.", value=turns.steps)
    times = HistogramMetricFamily("ricordo_turn_seconds", "Seconds that turns took.")
    times.add_metric([], turns.times.cumulated(), turns.times.sum)
    yield times


def _gauge(
    name: str, help_text: str, labels: list[str], readings: list[tuple[list[str], float]]
) -> Metric:
    family: Any = GaugeMetricFamily(name, help_text, labels=labels)
    for label_values, reading in readings:
        family.add_metric(label_values, reading)
    return family  # type: ignore[no-any-return]
