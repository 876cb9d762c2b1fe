"""`python -m bench.benchd --from FOLDER`: benchd-harness from your own install, over real HTTP.

FOLDER is a virtual environment with `benchd-harness` and `letta-client`. The harness sends the
conversations of its sets to a server of Ricordo through its adapter `letta`, and then asks its
questions. It does this once with the librarian, and once with a scripted model that follows the
texts of the tools (`bench/reader.py`). The server runs with RICORDO_FORGET_POLICY=direct, since the
harness cannot decide on proposals.

The harness passes an answer that contains an expected word. The last column is stricter: it counts
the passed answers without any word that the harness lists as a trap.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.reader import MODEL
from bench.servers import ricordo, scripted_model

SETS = ("smoke-memory-v0", "reliability-v1")
READER = f"openai/{MODEL}"
LIBRARIAN = "ricordo/librarian"
# The harness's own Python runs this program. It prints the harness's items with the words that an
# answer should not have.
_TRAPS = """
import json
from benchd_harness.benchmarks.reliability import ReliabilityBenchmark
items = ReliabilityBenchmark().load_items()
print(json.dumps({item.question_id: item.metadata["trap_keywords"] for item in items}))
"""


@dataclass(frozen=True)
class Outcome:
    """The harness's judgement of one answer. `passed` is None if it needs a judging model."""

    id: str
    dimension: str
    passed: bool | None
    answer: str
    traps: Sequence[str] = ()

    @property
    def is_clean(self) -> bool:
        text = self.answer.casefold()
        return bool(self.passed) and not any(trap.casefold() in text for trap in self.traps)


def run_set(folder: Path, name: str, url: str, traps: dict[str, list[str]]) -> list[Outcome]:
    """Let the harness run one set against a server, and read its results."""
    with TemporaryDirectory(prefix="ricordo-benchd-") as out:
        environment = {
            key: text
            for key, text in os.environ.items()
            # With these keys the adapter would send a configuration of another model.
            if key not in ("OPENROUTER_API_KEY", "LETTA_API_KEY")
        }
        environment |= {"LETTA_BASE_URL": url, "HOME": out}
        command = [str(folder / "bin" / "benchd"), "run", "--adapter", "letta"]
        subprocess.run(
            [*command, "--benchmark", name, "--out", out],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        (path,) = Path(out).rglob("manifest.signed.json")
        return list(outcomes_in(json.loads(path.read_text("utf-8"))["manifest"], traps))


def outcomes_in(manifest: dict[str, Any], traps: dict[str, list[str]]) -> Iterator[Outcome]:
    """Yield the outcomes of a manifest that the harness wrote."""
    for trace in manifest["traces"]:
        yield Outcome(
            trace["question_id"],
            trace["dimension"],
            None if trace["status"] == "pending_llm_judge" else trace["scored_correct"],
            trace["raw_recall"],
            traps.get(trace["question_id"], ()),
        )


def rows_of(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for each dimension: all passed answers, and those without a trap word."""
    for dimension in dict.fromkeys(one.dimension for one in outcomes):
        judged = [one for one in outcomes if one.dimension == dimension and one.passed is not None]
        passed = sum(bool(one.passed) for one in judged)
        clean = sum(one.is_clean for one in judged)
        yield f"{dimension:<20} {passed:>3} of {len(judged):<3} {clean:>3} without a trap word"


@contextmanager
def server_with(model: str) -> Iterator[str]:
    """Yield the address of a server whose agents have this model."""
    with (
        scripted_model("bench.reader") as model_url,
        ricordo(model_url, RICORDO_MODEL=model, RICORDO_FORGET_POLICY="direct") as server,
    ):
        yield server.url


def main() -> int:
    """Run the sets with each model; return 1 if the scripted model fails the requirement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("--model", action="append", help="a handle; by default both")
    parser.add_argument("--answers", action="store_true", help="print each answer")
    options = parser.parse_args()
    python = options.folder / "bin" / "python"
    printed = subprocess.run([str(python), "-c", _TRAPS], check=True, capture_output=True)
    traps = json.loads(printed.stdout)
    is_met = True
    for model in options.model or (READER, LIBRARIAN):
        outcomes: list[Outcome] = []
        with server_with(model) as url:
            for name in SETS:
                outcomes += run_set(options.folder, name, url, traps)
        print(f"\n{model}")
        print("\n".join(rows_of(outcomes)))
        if options.answers:
            for one in outcomes:
                print(f"  {one.id} {one.passed} {' '.join(one.answer.split())[:160]}")
        if model == READER:
            is_met = is_enough(outcomes)
    return 0 if is_met else 1


def is_enough(outcomes: Sequence[Outcome]) -> bool:
    """Return whether all deletions and six of seven changes are right."""
    passed = {
        dimension: [one.passed for one in outcomes if one.dimension == dimension]
        for dimension in ("deletion", "stale_memory")
    }
    stale = passed["stale_memory"]
    return all(passed["deletion"]) and sum(map(bool, stale)) * 7 >= len(stale) * 6


if __name__ == "__main__":
    sys.exit(main())
