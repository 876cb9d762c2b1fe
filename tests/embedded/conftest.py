"""One server inside this process for all tests here."""

from collections.abc import Iterator

import pytest
from letta_client import Letta

import ricordo
from ricordo.domain.model import LIBRARIAN
from tests.embedded.slow_model import SlowModel


@pytest.fixture(scope="package")
def model() -> SlowModel:
    return SlowModel()


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory, model: SlowModel) -> Iterator[Letta]:
    folder = tmp_path_factory.mktemp("embedded")
    with ricordo.open(folder, models=[model], model=LIBRARIAN, find_local_models=False) as client:
        yield client
