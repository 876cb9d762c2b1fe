"""The figures, as a table for people and as JSON for machines."""

import json
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured figure and its budget; a figure without a budget is for comparison only."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    more_is_better: bool = False

    @property
    def verdict(self) -> str:
        """Whether the budget is kept."""
        if self.budget is None:
            return ""
        kept = self.value >= self.budget if self.more_is_better else self.value <= self.budget
        return "kept" if kept else "MISSED"


class Report:
    """Prints each figure as soon as it is measured, and keeps all of them."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self._began = time.perf_counter()

    def begin(self, title: str) -> None:
        """Print the title of the next measurement, and the seconds so far."""
        print(f"\n[{time.perf_counter() - self._began:4.0f} s] {title}", flush=True)

    def add(self, figures: Iterable[Figure]) -> None:
        """Print and keep the figures, each when the iterable yields it."""
        for figure in figures:
            self.figures.append(figure)
            value = _value(figure)
            line = f"  {figure.name:64} {value:>14}  {_budget(figure):>14}  {figure.verdict}"
            print(line.rstrip(), flush=True)

    def end(self) -> None:
        """Print the total time, and the figures that missed their budgets."""
        missed = [figure for figure in self.figures if figure.verdict == "MISSED"]
        budgets = sum(figure.budget is not None for figure in self.figures)
        self.begin(f"{len(self.figures)} figures; {len(missed)} of {budgets} budgets MISSED")
        for figure in missed:
            print(f"  MISSED: {figure.name.strip()}: {_value(figure)}")


def _value(figure: Figure) -> str:
    value = figure.value
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {figure.unit}".rstrip()


def _budget(figure: Figure) -> str:
    if figure.budget is None:
        return ""
    sign = "≥" if figure.more_is_better else "≤"
    return f"{sign} {figure.budget:g} {figure.unit}".rstrip()


def show(figures: list[Figure]) -> None:
    """Print the table."""
    table = Table(title="Ricordo, measured")
    for column, justify in (
        ("what", "left"),
        ("figure", "right"),
        ("budget", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for figure in figures:
        value = _value(figure)
        table.add_row(figure.name, value, _budget(figure), figure.verdict)
    Console(width=110).print(table)


def keep(figures: list[Figure], **more: Any) -> Path:
    """Write the figures as JSON, with the machine and other data; return the path."""
    RESULTS.mkdir(exist_ok=True)
    moment = datetime.now(UTC)
    path = RESULTS / f"{moment:%Y%m%dT%H%M%S}.json"
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "measured_at": moment.isoformat(),
    }
    rows = [asdict(figure) | {"verdict": figure.verdict} for figure in figures]
    path.write_text(json.dumps({"machine": machine, "figures": rows, **more}, indent=2) + "\n")
    return path
