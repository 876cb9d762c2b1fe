"""Requests at random to every documented route: none is answered with an error of the server's, or with what is not documented."""

from pathlib import Path

import pytest

from tests.campaigns.sizes import short_and_long
from tests.support.fuzz import fuzz


@pytest.mark.campaign
@pytest.mark.parametrize("requests", short_and_long(300, 20_000))
def test_no_request_breaks_the_server_or_is_answered_otherwise_than_documented(tmp_path: Path, requests: int) -> None:
    report = fuzz(tmp_path, requests, number=1)
    print(report)
    assert not report.faults, str(report)
    # That it was a campaign: most routes were asked, and not all of it was refused.
    assert report.requests >= requests
    assert len(report.routes) > 80
    assert report.statuses[200] > requests / 20


@pytest.mark.soak
@pytest.mark.campaign
def test_the_same_holds_on_postgresql(tmp_path: Path) -> None:
    report = fuzz(tmp_path, 5000, number=2, database="postgresql")
    print(report)
    assert not report.faults, str(report)
    assert report.requests >= 5000
