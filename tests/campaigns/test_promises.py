"""Storing the results of campaigns, and showing them on the page about trust."""

from collections import Counter
from pathlib import Path

import pytest

from tests.campaigns.promises import PAGE, PROMISES, RESULTS, page_with, promised_tests, table
from tests.support.campaign_record import CampaignRecord, read_results

_CANARIES = next(test for test in promised_tests() if "test_canaries" in test)
_CRASH = next(test for test in promised_tests() if "loses_nothing_it_acknowledged" in test)


def report(
    test: str, outcome: str = "passed", when: str = "call", **told: object
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=test,
        location=("", None, ""),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        duration=1.25,
        user_properties=list(told.items()),
    )


def kept(request: pytest.FixtureRequest, path: Path, *reports: pytest.TestReport) -> None:
    """Write these reports into a file, as pytest does at its end."""
    record = CampaignRecord(path)
    for one in reports:
        record.pytest_runtest_logreport(one)
    record.pytest_sessionfinish(request.session)


def test_each_promise_names_tests_that_exist_once() -> None:
    names = Counter(test.rpartition("::")[2] for test in promised_tests())
    wanted = [test for promise in PROMISES for test in promise.tests]
    assert {name: times for name, times in names.items() if times > 1} == {}
    assert set(wanted) - set(names) == set()
    assert len(wanted) == len(set(wanted))


def test_the_page_holds_the_table_of_the_results_that_are_kept() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_with(page, read_results(RESULTS))


def test_a_result_replaces_the_same_tests_and_leaves_the_others(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "campaigns.json"
    kept(
        request,
        path,
        report(f"{_CRASH}[long]", kills=100),
        report(f"{_CANARIES}[long]", "failed", calls=10, seed=3),
        report("tests/test_docs.py::test_of_no_promise"),
    )
    kept(request, path, report(f"{_CANARIES}[long]", calls=20, seed=4))

    results = read_results(path)
    crash, canaries = (f"{test.rpartition('::')[2]}[long]" for test in (_CRASH, _CANARIES))
    assert set(results) == {crash, canaries}
    assert results[canaries]["outcome"] == "passed"
    assert results[canaries]["seed"] == 4
    assert results[canaries]["counts"] == {"calls": 20}


@pytest.mark.parametrize("when", ["call", "setup", "teardown"])
def test_a_failure_is_in_the_table_wherever_in_the_test_it_was(
    when: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "campaigns.json"
    kept(
        request,
        path,
        report(f"{_CRASH}[long]", kills=100),
        report(f"{_CRASH}[long]", "failed", when, kills=100),
    )
    rows = table(read_results(path)).splitlines()
    assert [row for row in rows if "1 failed" in row and "100 kills" in row] != []
    assert sum("not run yet" in row for row in rows) == len(PROMISES) - 1


def test_counts_of_a_campaign_that_continues_are_added_until_it_fails(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "campaigns.json"
    for outcome, kills, expected in (
        ("passed", 100, 100),
        ("passed", 30, 130),
        ("failed", 7, 7),
        ("passed", 20, 20),
    ):
        kept(request, path, report(f"{_CRASH}[long]", outcome, continues=True, kills=kills))
        (result,) = read_results(path).values()
        assert (result["outcome"], result["counts"]) == (outcome, {"kills": expected})
    kept(request, path, report(f"{_CRASH}[long]", kills=5))
    (result,) = read_results(path).values()
    assert result["counts"] == {"kills": 5}
