"""`ricordo memory audit`: the quality of memory as a table or as JSON. Reads the database, also while a server runs."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ricordo.features.memory_care.audit.service import Audit, Finding, Growth, Kind

app = typer.Typer()
_MEANING: "dict[Kind, str]" = {
    "junk": "say nothing, or were left by a model",
    "duplicate": "occur twice",
    "near-duplicate": "occur twice with nearly the same words",
    "unsupported": "were said by no user",
    "secret": "hold a key or a password",
    "untrusted": "hold content from the web, a file, a tool or another user",
}


@app.command("audit")
def audit_memory(
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    most: int = typer.Option(20, min=0, help="How many findings and blocks to show."),
) -> None:
    """Find junk, duplicates and secrets in all memory. Also lines without support, and growth. Changes nothing."""
    import json

    from ricordo.domain.scope import Scope
    from ricordo.features.memory_care.audit.service import audit
    from ricordo.settings import load_settings
    from ricordo.storage.engine.database import read_beside

    settings, _ = load_settings()
    with read_beside(settings) as tx:
        found = audit(tx, Scope())
    typer.echo(
        json.dumps(to_json(found), ensure_ascii=False, indent=2) if as_json else table(found, most)
    )


def to_json(found: "Audit") -> dict[str, Any]:
    """Return the whole audit as JSON."""
    import dataclasses

    growth = [
        {**dataclasses.asdict(one), "characters_per_version": round(one.per_version, 1)}
        for one in found.growth
    ]
    return {**dataclasses.asdict(found), "growth": growth}


def table(found: "Audit", most: int) -> str:
    """Return the audit as lines of text."""
    lines = [
        f"{found.blocks:,} blocks with {found.lines:,} lines, and {found.passages:,} passages\n"
    ]
    lines += [f"{found.counts.get(kind, 0):>6,}  {kind:<15} {_MEANING[kind]}" for kind in _MEANING]
    if found.findings:
        lines += ["", *_findings(found.findings[:most])]
    if len(found.findings) > most:
        lines.append(
            f"… and {len(found.findings) - most:,} more. All of them: ricordo memory audit --json"
        )
    if found.growth:
        lines += ["", *_growth(found.growth[:most])]
    return "\n".join(lines)


def _findings(findings: "Sequence[Finding]") -> list[str]:
    lines: list[str] = []
    owner = ""
    for one in findings:
        if one.owner != owner:
            owner = one.owner
            lines.append(owner)
        place = f"{one.place}:{one.line}" if one.line else one.place
        lines.append(f"  {one.kind:<15} {place}  {one.text}  ({one.reason})")
    return lines


def _growth(growth: "Sequence[Growth]") -> list[str]:
    lines = [f"{'characters':>10}  {'of limit':>8}  {'versions':>8}  {'per version':>11}  block"]
    for one in growth:
        share = one.characters / max(1, one.limit)
        numbers = (
            f"{one.characters:>10,}  {share:>8.0%}  {one.versions:>8,}  {one.per_version:>+11.1f}"
        )
        lines.append(f"{numbers}  {one.label} ({one.policy}) of {one.owner}")
    return lines
