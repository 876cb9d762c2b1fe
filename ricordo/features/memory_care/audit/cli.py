"""`ricordo memory audit`: print the quality of memory as a table or as JSON.

The command only reads the database, so a server may be running.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import typer

from ricordo.domain.scope import Scope
from ricordo.features import FEATURES
from ricordo.features.memory_care.audit.findings import Finding, Kind
from ricordo.features.memory_care.audit.hygiene import Tally
from ricordo.features.memory_care.audit.service import Audit, Growth, audit
from ricordo.plugins import load_plugins
from ricordo.settings import load_settings
from ricordo.storage.engine.database import read_beside

app = typer.Typer()
_MEANING: "dict[Kind, str]" = {
    "junk": "say nothing, or are left over from a model's output",
    "duplicate": "occur twice",
    "near-duplicate": "occur twice with nearly the same words",
    "unsupported": "were said by no user",
    "contradiction": "contradict another line",
    "stale": "name a time that has passed",
    "secret": "hold a key or a password",
    "untrusted": "hold content from the web, a file, a tool or another user",
}


@app.command("audit")
def audit_memory(
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    limit: int = typer.Option(
        20, "--most", min=0, help="The most users, findings and blocks to show."
    ),
    gate: float | None = typer.Option(
        None,
        "--gate",
        min=0,
        max=100,
        help="Percentage. Exit with 1 if a user's junk, duplicates, unsupported lines, "
        "contradictions or stale lines reach it.",
    ),
) -> None:
    """Find junk, duplicates, contradictions and secrets.

    Also find unsupported lines and growth, and count lines and facts by user. Changes nothing.
    """
    settings, _ = load_settings()
    sources = load_plugins(FEATURES).audits()
    with read_beside(settings) as tx:
        outcome = audit(tx, Scope(), sources=sources)
    if as_json:
        typer.echo(json.dumps(to_json(outcome), ensure_ascii=False, indent=2))
    else:
        typer.echo(table(outcome, limit))
    if gate is not None and any(tally.worst_share * 100 >= gate for tally in outcome.tallies):
        raise typer.Exit(1)


def to_json(outcome: "Audit") -> dict[str, Any]:
    """Return the whole audit as JSON.

    Args:
        outcome: The audit.
    """
    growth = [
        {
            **dataclasses.asdict(block_growth),
            "characters_per_version": round(block_growth.per_version, 1),
        }
        for block_growth in outcome.growth
    ]
    return {**dataclasses.asdict(outcome), "growth": growth}


def table(outcome: "Audit", limit: int) -> str:
    """Return the audit as lines of text.

    Args:
        outcome: The audit.
        limit: The most users, findings and blocks; each list is cut to it.
    """
    lines = [
        f"{outcome.blocks:,} blocks with {outcome.lines:,} lines, "
        f"and {outcome.passages:,} passages\n"
    ]
    lines += [
        f"{outcome.counts.get(kind, 0):>6,}  {kind:<15} {_MEANING[kind]}" for kind in _MEANING
    ]
    if outcome.tallies:
        lines += ["", *_tallies(outcome.tallies[:limit])]
    if outcome.findings:
        lines += ["", *_findings(outcome.findings[:limit])]
    if len(outcome.findings) > limit:
        lines.append(
            f"… and {len(outcome.findings) - limit:,} more. "
            "All of them: ricordo memory audit --json"
        )
    if outcome.growth:
        lines += ["", *_growth(outcome.growth[:limit])]
    return "\n".join(lines)


def _tallies(tallies: "Sequence[Tally]") -> list[str]:
    lines = [
        f"{'items':>6}  {'junk':>6}  {'twice':>6}  {'unsaid':>6}  {'contra':>6}  {'stale':>6}  of user"
    ]
    for tally in tallies:
        counts = (
            tally.junk,
            tally.duplicates,
            tally.unsupported,
            tally.contradictions,
            tally.stale,
        )
        shares = "  ".join(f"{count / max(1, tally.items):>6.1%}" for count in counts)
        lines.append(f"{tally.items:>6,}  {shares}  {tally.name} ({tally.source}s)")
    return lines


def _findings(findings: "Sequence[Finding]") -> list[str]:
    lines: list[str] = []
    owner = ""
    for finding in findings:
        if finding.owner != owner:
            owner = finding.owner
            lines.append(owner)
        position = f"{finding.place}:{finding.line}" if finding.line else finding.place
        lines.append(f"  {finding.kind:<15} {position}  {finding.text}  ({finding.reason})")
    return lines


def _growth(growth: "Sequence[Growth]") -> list[str]:
    lines = [f"{'characters':>10}  {'of limit':>8}  {'versions':>8}  {'per version':>11}  block"]
    for item in growth:
        share = item.characters / max(1, item.limit)
        numbers = (
            f"{item.characters:>10,}  {share:>8.0%}  {item.versions:>8,}  "
            f"{item.per_version:>+11.1f}"
        )
        lines.append(f"{numbers}  {item.label} ({item.policy}) of {item.owner}")
    return lines
