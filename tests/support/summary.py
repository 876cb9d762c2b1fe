"""The summary at the end of the long tests: each module's outcome, tests and minutes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_OUTCOMES = {"passed": "passed", "failed": "failed", "error": "failed", "skipped": "skipped"}


@dataclass
class _Module:
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def summary_lines(stats: Mapping[str, Iterable[Any]]) -> list[str]:
    """Return the table of a terminal reporter's reports.

    Failed modules come first, then the slowest.
    """
    modules: defaultdict[str, _Module] = defaultdict(_Module)
    for category, reports in stats.items():
        for report in reports:
            if not hasattr(report, "duration") or not hasattr(report, "when"):
                continue
            module = modules[report.nodeid.partition("::")[0]]
            module.seconds += report.duration
            if outcome := _OUTCOMES.get(category):
                module.counts[outcome] += 1
    ordered = sorted(
        modules.items(), key=lambda item: (not item[1].counts["failed"], -item[1].seconds)
    )
    total = _Module(
        sum((module.counts for module in modules.values()), Counter()),
        sum(module.seconds for module in modules.values()),
    )
    head = f"{'outcome':<8} {'passed':>6} {'failed':>6} {'skipped':>7} {'minutes':>7}  module"
    return [head, *(_line(name, module) for name, module in ordered), _line("all", total)]


def _line(name: str, module: _Module) -> str:
    counts = module.counts
    outcome = next((name for name in ("failed", "passed") if counts[name]), "skipped")
    return (
        f"{outcome:<8} {counts['passed']:>6} {counts['failed']:>6} {counts['skipped']:>7} "
        f"{module.seconds / 60:>7.1f}  {name}"
    )
