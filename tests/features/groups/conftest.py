"""One server for the tests of groups, which checks for jobs often, and agents on it."""

import pytest

from tests.api.conftest import Api
from tests.features.groups.cast import Cast
from tests.seams.jobs import quick_jobs

__all__ = ["quick_jobs"]


@pytest.fixture
def cast(api: Api) -> Cast:
    return Cast(api.server, api.http)
