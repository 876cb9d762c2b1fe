"""The settings of vector services: what is taken, and what stops a start with which words."""

import os
from pathlib import Path

import pytest

from ricordo.errors import Invalid
from ricordo.settings import PREFIX, ProviderSettings, VectorSettings, load_settings, load_vector_settings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the variables nor the `.env` of whoever runs the tests."""
    known = {name.upper() for model in (VectorSettings, ProviderSettings) for name in model.model_fields}
    for name in list(os.environ):
        if name.upper().startswith(PREFIX) or name.upper() in known:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def faults() -> list[str]:
    with pytest.raises(Invalid) as caught:
        load_settings()
    with pytest.raises(Invalid) as again:
        load_vector_settings()
    assert str(again.value) == str(caught.value)
    return str(caught.value).splitlines()


def test_nothing_has_to_be_set_and_every_setting_has_its_sentence() -> None:
    given = load_vector_settings().model_dump()
    assert given.pop("namespace_prefix") == "ricordo"
    assert set(given.values()) == {None}
    assert all((field.description or "").endswith(".") for field in VectorSettings.model_fields.values())


def test_they_are_set_by_their_usual_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURBOPUFFER_API_KEY=from-file\nTURBOPUFFER_REGION=aws-us-east-1\n")
    monkeypatch.setenv("PINECONE_INDEX_HOST", "my-index-1.svc.region.pinecone.io")
    monkeypatch.setenv("QDRANT_PATH", "~/vectors")
    monkeypatch.setenv("RICORDO_VECTOR_PREFIX", "school")
    load_settings()
    settings = load_vector_settings()
    assert settings.turbopuffer_api_key
    assert settings.turbopuffer_api_key.get_secret_value() == "from-file"
    assert settings.turbopuffer_region == "aws-us-east-1"
    assert settings.pinecone_index_host == "my-index-1.svc.region.pinecone.io"
    assert settings.qdrant_path == Path.home() / "vectors"
    assert settings.namespace_prefix == "school"
    assert "from-file" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURBOPUFFER_API_KEY", "s3cret key"),
        ("PINECONE_API_KEY", "s3cret\n"),
        ("QDRANT_API_KEY", "s3crét"),
        ("TURBOPUFFER_REGION", "evil.example/"),
        ("TURBOPUFFER_REGION", "aws-us-east-1\n"),
        ("TURBOPUFFER_BASE_URL", "host"),
        ("QDRANT_URL", "localhost:6333"),
        ("PINECONE_INDEX_HOST", "a b"),
        ("PINECONE_INDEX_HOST", "ftp://host.io"),
        ("RICORDO_VECTOR_PREFIX", "a/b"),
        ("RICORDO_VECTOR_PREFIX", "x" * 33),
    ],
)
def test_a_malformed_one_stops_the_start_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    (fault,) = faults()
    assert fault.startswith(f"{name}: ")
    assert "s3cr" not in fault


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("TURBOPUFFER_REGION", "aws-us-east-1"), ("TURBOPUFFER_BASE_URL", "http://host")),
        (("QDRANT_URL", "http://host:6333"), ("QDRANT_PATH", "/var/vectors")),
    ],
)
def test_two_places_for_one_service_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, one: tuple[str, str], other: tuple[str, str]
) -> None:
    for name, value in (one, other):
        monkeypatch.setenv(name, value)
    assert faults() == [f"{one[0]} and {other[0]} are both set. Set one of them."]
