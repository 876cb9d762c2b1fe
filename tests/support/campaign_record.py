"""The results of campaigns as JSON, for the table of promises in `docs/operate/trust.md`.

`pytest --campaigns FILE` writes the result of each test of `tests/campaigns/promises.py` into FILE,
and keeps the file's results of other tests. A test records its counts and its seed with pytest's
`record_property`. Parameters of the test that are counts are recorded without it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.promises import PAGE, RESULTS, page_with, promised_tests

# Parameters of tests that are counts of trials.
_COUNTS = ("calls", "crashes", "faults", "hours", "kills", "requests", "rounds", "turns")
# The key is a test's name with its parameters, without its file, so that a test may move.
Results = dict[str, dict[str, Any]]
_CONTINUES = "continues"  # Marks a test whose counts are added up over its runs.


class CampaignRecord:
    """Collects the reports of promised tests, and writes them at the end of the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests = promised_tests()
        self._results: Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the call of a promised test, or the failure of its fixtures."""
        if report.when != "call" and report.outcome != "failed":
            return
        if report.nodeid.partition("[")[0] in self._tests:
            self._results[report.nodeid.rpartition("::")[2]] = result_of(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Record counts that are parameters of the test; the test may replace them later."""
        callspec = getattr(item, "callspec", None)
        if callspec is not None:
            item.user_properties += [
                (name, callspec.params[name]) for name in _COUNTS if name in callspec.params
            ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, in the process that gathers the reports of all workers."""
        if self._results and not hasattr(session.config, "workerinput"):
            write_results(self._path, self._results)


def result_of(report: pytest.TestReport) -> dict[str, Any]:
    """Return the result of one test: outcome, date (UTC), seconds, seed, and counts by name."""
    told = dict(report.user_properties)
    seed = told.pop("seed", None)
    continues = told.pop(_CONTINUES, False)
    return {
        **({_CONTINUES: True} if continues else {}),
        "outcome": report.outcome,
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(report.duration, 1),
        "seed": seed,
        "counts": told,
    }


def write_results(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write these results into a file; results of other tests in it stay.

    Results of tests that no promise names any more are left out.
    """
    known = {test.rpartition("::")[2] for test in promised_tests()}
    earlier = read_results(path)
    added = {name: _added(earlier.get(name), result) for name, result in results.items()}
    merged = {
        name: result
        for name, result in {**earlier, **added}.items()
        if name.partition("[")[0] in known
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _added(earlier: Mapping[str, Any] | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result plus the counts of the runs that it continues, if all of them passed."""
    runs = (earlier, result)
    if not all(run and run.get(_CONTINUES) and run["outcome"] == "passed" for run in runs):
        return dict(result)
    assert earlier is not None
    counts = Counter(earlier["counts"]) + Counter(result["counts"])
    return {
        **result,
        "counts": dict(counts),
        "seconds": round(earlier["seconds"] + result["seconds"], 1),
    }


def continued(request: pytest.FixtureRequest, name: str, usual: int) -> tuple[int, int]:
    """Return the number of trials of earlier runs of this test, and that of this run.

    Args:
        request: Pytest's fixture of the test, which is recorded as one that continues.
        name: The name of the count.
        usual: The number of trials without the option `--count`.
    """
    request.node.user_properties.append((_CONTINUES, True))
    path: Path | None = request.config.getoption("campaigns")
    earlier = read_results(path).get(request.node.name, {}) if path else {}
    if earlier.get("outcome") != "passed":
        earlier = {}
    return earlier.get("counts", {}).get(name, 0), request.config.getoption("count") or usual


def read_results(path: Path) -> Results:
    """Return the results of a file; empty if there is no file."""
    if not path.exists():
        return {}
    results: Results = json.loads(path.read_text(encoding="utf-8"))
    return results


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--campaigns` and `--count`."""
    parser.addoption(
        "--campaigns",
        metavar="FILE",
        type=Path,
        help="write the results of campaigns into this JSON file",
    )
    parser.addoption(
        "--count",
        metavar="N",
        type=int,
        help="trials of campaigns that continue where the run before ended; see --campaigns",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect results if the option is given."""
    path: Path | None = config.getoption("campaigns")
    if path is not None:
        config.pluginmanager.register(CampaignRecord(path), "campaign-record")


def main() -> None:
    """Write the table of the results into the page about trust."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page_with(page, read_results(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
