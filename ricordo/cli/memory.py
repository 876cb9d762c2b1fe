"""`ricordo memory audit`: how good memory is, as a table or as JSON. Reads the database, also beside a running server."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import typer

from ricordo.domain.scope import Scope
from ricordo.memory.auditing import KINDS, Audit, Finding, Growth, audit
from ricordo.settings import Settings, load_settings
from ricordo.storage.beside import open_for_reading

_MEANING = {
    "junk": "say nothing, or were left by a model",
    "duplicate": "stand twice",
    "near-duplicate": "stand nearly twice",
    "unsupported": "were said by no user",
    "secret": "hold a key or a password",
    "tainted": "came of what nobody vouches for",
}


def audit_memory(*, as_json: bool = False, most: int = 20) -> None:
    """Print what there is to say of all memory, of findings and blocks at most so many. Raises NotFound, Conflict, Unavailable."""
    settings, _ = load_settings()
    found = asyncio.run(_read(settings))
    typer.echo(json.dumps(to_json(found), ensure_ascii=False, indent=2) if as_json else table(found, most))


async def _read(settings: Settings) -> Audit:
    store = open_for_reading(settings)
    try:
        return await store.read(lambda tx: audit(tx, Scope()))
    finally:
        await store.close()


def to_json(found: Audit) -> dict[str, Any]:
    """The whole audit as JSON."""
    return {
        "blocks": found.blocks,
        "lines": found.lines,
        "passages": found.passages,
        "counts": dict(found.counts),
        "findings": [dataclasses.asdict(one) for one in found.findings],
        "growth": [
            {**dataclasses.asdict(one), "characters_per_version": round(one.per_version, 1)} for one in found.growth
        ],
    }


def table(found: Audit, most: int) -> str:
    """The audit as lines of text."""
    lines = [f"{found.blocks:,} blocks with {found.lines:,} lines, and {found.passages:,} passages\n"]
    lines += [f"{found.counts.get(kind, 0):>6,}  {kind:<15} {_MEANING[kind]}" for kind in KINDS]
    if found.findings:
        lines += ["", *_findings(found.findings[:most])]
    if len(found.findings) > most:
        lines.append(f"… and {len(found.findings) - most:,} more. All of them: ricordo memory audit --json")
    if found.growth:
        lines += ["", *_growth(found.growth[:most])]
    return "\n".join(lines)


def _findings(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    owner = ""
    for one in findings:
        if one.owner != owner:
            owner = one.owner
            lines.append(owner)
        place = f"{one.place}:{one.line}" if one.line else one.place
        lines.append(f"  {one.kind:<15} {place}  {one.text}  ({one.why})")
    return lines


def _growth(growth: Sequence[Growth]) -> list[str]:
    heads = f"{'characters':>10}  {'of limit':>8}  {'versions':>8}  {'per version':>11}  block"
    return [
        heads,
        *(
            f"{one.characters:>10,}  {one.characters / max(1, one.limit):>8.0%}  {one.versions:>8,}  {one.per_version:>+11.1f}  "
            f"{one.label} ({one.policy}) of {one.owner}"
            for one in growth
        ),
    ]
