"""A server inside the process of a chat."""

from pathlib import Path

import httpx2
import pytest

from ricordo.cli.background import background_server
from ricordo.errors import Conflict
from ricordo.settings import ProviderSettings, Settings

pytestmark = pytest.mark.usefixtures("quiet_logs")
PROVIDERS = ProviderSettings.model_construct()


def test_it_answers_on_a_port_of_its_own_and_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, find_local_models=False, api_key=None, host="127.0.0.1")
    for _ in range(2):
        with background_server(settings, PROVIDERS) as address:
            assert httpx2.get(f"{address}/v1/agents/", trust_env=False).json() == []
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(address, trust_env=False)


def test_a_folder_that_another_server_holds_is_refused_with_what_to_do(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, find_local_models=False, api_key=None, host="127.0.0.1")
    with (
        background_server(settings, PROVIDERS),
        pytest.raises(Conflict, match=r"Another Ricordo server is using .* name its address by --server"),
        background_server(settings, PROVIDERS),
    ):
        pass
