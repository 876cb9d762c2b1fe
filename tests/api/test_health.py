from importlib.metadata import version

import httpx2
import pytest

from tests.support.serving import StrictLetta


def test_the_official_client_finds_the_server_healthy(client: StrictLetta) -> None:
    health = client.health()

    assert (health.version, health.status) == (version("ricordo"), "ok")


@pytest.mark.parametrize("path", ["/v1/health", "/v1/health/"])
def test_health_answers_with_and_without_the_last_slash(http: httpx2.Client, path: str) -> None:
    answer = http.get(path)

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"version": version("ricordo"), "status": "ok"}
