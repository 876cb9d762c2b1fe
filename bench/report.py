"""The figures as a table for people and as JSON for machines."""

import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured figure and its budget; without a budget it is a yardstick."""

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
        sign = "≥" if figure.more_is_better else "≤"
        budget = "" if figure.budget is None else f"{sign} {figure.budget:g} {figure.unit}"
        table.add_row(figure.name, f"{figure.value:.3g} {figure.unit}", budget, figure.verdict)
    Console(width=110).print(table)


def keep(figures: list[Figure], **more: Any) -> Path:
    """Write the figures, with the machine they were measured on and whatever else, as JSON.

    Returns where.
    """
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
