"""Settings: where they come from, and what stops a start with which words."""

import os
from pathlib import Path

import pytest

import ricordo
from ricordo.errors import Invalid
from ricordo.settings import PREFIX, ProviderSettings, Settings, load_settings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the variables nor the `.env` of whoever runs the tests."""
    known = {name.upper() for name in ProviderSettings.model_fields} | {"OPENAI_API_BASE", "GOOGLE_API_KEY"}
    for name in list(os.environ):
        if name.upper().startswith(PREFIX) or name.upper() in known:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def faults(**options: object) -> list[str]:
    with pytest.raises(Invalid) as caught:
        load_settings(**options)
    return str(caught.value).splitlines()


def test_nothing_has_to_be_set() -> None:
    settings, providers = load_settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8283)
    assert settings.data_dir == Path.home() / ".ricordo"
    assert settings.database_path == settings.data_dir / "ricordo.db"
    assert settings.api_key is None
    assert all(value is None for value in providers.model_dump().values())


@pytest.mark.parametrize("model", [Settings, ProviderSettings])
def test_every_setting_has_its_sentence(model: type[Settings | ProviderSettings]) -> None:
    for name, field in model.model_fields.items():
        assert (field.description or "").endswith("."), name


def test_an_option_beats_the_environment_that_beats_the_file_that_beats_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = [load_settings()[0].port]
    (tmp_path / ".env").write_text("RICORDO_PORT=1001\n")
    ports.append(load_settings()[0].port)
    monkeypatch.setenv("RICORDO_PORT", "1002")
    ports.append(load_settings()[0].port)
    ports += [load_settings(port=1003)[0].port, load_settings(port=None)[0].port, load_settings(port=0)[0].port]
    assert ports == [8283, 1001, 1002, 1003, 1002, 0]


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_PORT", "")
    monkeypatch.setenv("RICORDO_API_KEY", "")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    settings, providers = load_settings()
    assert (settings.port, settings.api_key, providers.openai_api_key) == (8283, None, None)


@pytest.mark.parametrize("name", ["RICORDO_PROT", "ricordo_prot", "RICORDO_"])
def test_an_unknown_setting_stops_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "8283")
    (fault,) = faults()
    assert fault.startswith(f"{name} is not a setting of Ricordo.")


def test_an_unknown_setting_in_the_file_stops_the_start_and_others_may_keep_theirs_there(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("POSTGRES_PASSWORD=x\nRICORDO_COLOUR=red\n")
    assert [fault.split()[0] for fault in faults()] == ["RICORDO_COLOUR"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RICORDO_PORT", "eighty"),
        ("RICORDO_PORT", "65536"),
        ("RICORDO_MODEL_TIMEOUT", "0"),
        ("RICORDO_MODEL_RETRIES", "-1"),
        ("RICORDO_LOG_LEVEL", "loud"),
        ("RICORDO_DURABILITY", "most"),
        ("RICORDO_FIND_LOCAL_MODELS", "maybe"),
    ],
)
def test_a_malformed_value_stops_the_start_with_the_name_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    (fault,) = faults()
    assert fault.startswith(f"{name}: ")


def test_a_malformed_option_is_named_too() -> None:
    (fault,) = faults(port=-1)
    assert fault.startswith("RICORDO_PORT: ")


def test_several_faults_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_PORT", "eighty")
    monkeypatch.setenv("RICORDO_LOG_FORMAT", "xml")
    monkeypatch.setenv("RICORDO_COLOUR", "red")
    assert {fault.split()[0].rstrip(":") for fault in faults()} == {
        "RICORDO_PORT",
        "RICORDO_LOG_FORMAT",
        "RICORDO_COLOUR",
    }


def test_a_key_is_shown_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_API_KEY", "s3cret-key")
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret-key")
    monkeypatch.setenv("RICORDO_PORT", "eighty")
    assert "s3cret" not in "".join(faults())
    monkeypatch.delenv("RICORDO_PORT")
    assert "s3cret" not in repr(load_settings())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my-machine"])  # noqa: S104
def test_an_address_others_can_reach_needs_a_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("RICORDO_HOST", host)
    (fault,) = faults()
    assert f"RICORDO_HOST={host}" in fault
    assert "RICORDO_API_KEY must be set too" in fault
    monkeypatch.setenv("RICORDO_API_KEY", "s3cret-key")
    assert load_settings()[0].host == host


@pytest.mark.parametrize("key", ["", "   "])
def test_an_empty_key_is_no_key(key: str) -> None:
    (fault,) = faults(host="0.0.0.0", api_key=key)  # noqa: S104
    assert "RICORDO_API_KEY" in fault


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert load_settings(host=host)[0].api_key is None


@pytest.mark.parametrize("inside", ["", "data", "a/../storage/x"])
def test_data_inside_the_program_is_refused(inside: str) -> None:
    package = Path(ricordo.__file__).parent
    (fault,) = faults(data_dir=str(package / inside))
    assert fault.startswith(f"RICORDO_DATA_DIR is inside the program, in {package}.")


def test_a_database_inside_the_program_is_refused() -> None:
    (fault,) = faults(database_url=f"sqlite:///{Path(ricordo.__file__).parent / 'storage' / 'ricordo.db'}")
    assert fault.startswith("RICORDO_DATABASE_URL is inside the program")


def test_a_folder_beside_the_program_is_allowed() -> None:
    beside = Path(ricordo.__file__).parent.with_name("ricordo-data")
    assert load_settings(data_dir=beside)[0].data_dir == beside


def test_a_data_folder_is_absolute_from_wherever_it_was_named(tmp_path: Path) -> None:
    assert load_settings(data_dir="kept")[0].data_dir == tmp_path.resolve() / "kept"


def test_the_home_of_nobody_is_refused_by_name() -> None:
    for name, value in (("data_dir", "~nobody-of-this-name/x"), ("database_url", "sqlite:///~nobody-of-this-name/x")):
        (fault,) = faults(**{name: value})
        assert fault.startswith(f"RICORDO_{name.upper()}")


@pytest.mark.parametrize("url", ["mysql://x", "ricordo.db", "sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_of_another_kind_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("RICORDO_DATABASE_URL", url)
    (fault,) = faults()
    assert fault.startswith("RICORDO_DATABASE_URL: must be sqlite:///path/to/file or postgresql://")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@host/ricordo",
        "postgres://host:5433/ricordo",
        "postgresql://user@/ricordo?host=/var/run/postgresql",
        "postgresql://user:s%40cret@[::1]:5432/ricordo?sslmode=require",
    ],
)
def test_a_database_can_be_on_postgresql(url: str) -> None:
    settings = load_settings(database_url=url)[0]
    assert settings.postgres_url == url
    assert settings.database_path == settings.data_dir / "ricordo.db"
    assert "s3cret" not in repr(settings)
    assert "host" not in repr(settings.database_url)
    assert load_settings(database_url="sqlite:///x.db")[0].postgres_url is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@host",
        "postgresql://user:s3cret@host/",
        "postgresql:///ricordo",
        "postgresql://user:s3@cret@host/ricordo",
        "postgresql://user:s3/cret@host/ricordo",
        "postgresql://user:s3cret@host:port/ricordo",
    ],
)
def test_half_an_address_of_postgresql_is_refused_without_its_password(url: str) -> None:
    (fault,) = faults(database_url=url)
    assert fault.startswith("RICORDO_DATABASE_URL: must be postgresql://user:password@host/database")
    assert "cret" not in fault


def test_a_database_can_lie_elsewhere(tmp_path: Path) -> None:
    settings = load_settings(database_url=f"sqlite:///{tmp_path}/other.db", data_dir=tmp_path / "kept")[0]
    assert settings.database_path == tmp_path.resolve() / "other.db"
    home = load_settings(database_url="sqlite:///~/other.db")[0]
    assert home.database_path == Path.home() / "other.db"


def test_providers_are_set_by_their_usual_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ANTHROPIC_API_KEY=from-file\nOPENAI_API_BASE=http://localhost:1/v1\n")
    monkeypatch.setenv("GOOGLE_API_KEY", "from-environment")
    providers = load_settings()[1]
    assert providers.anthropic_api_key
    assert providers.anthropic_api_key.get_secret_value() == "from-file"
    assert providers.openai_base_url == "http://localhost:1/v1"
    assert providers.gemini_api_key
    assert providers.gemini_api_key.get_secret_value() == "from-environment"


@pytest.mark.parametrize(
    "url", ["localhost:11434", "ftp://host", "http://", "http://host:99999", "http://host:0", "http://a b", "http://[x"]
)
@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "VLLM_API_BASE"])
def test_an_address_that_is_none_stops_the_start_by_name(monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    monkeypatch.setenv(name, url)
    (fault,) = faults()
    assert fault.startswith(f"{name}: must be an address, such as http://")


@pytest.mark.parametrize("key", ["s3cret-kéy", "s3cret key", "s3cret-key\n", "s3cret\tkey", " s3cret"])
@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_a_key_that_cannot_be_sent_stops_the_start_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    monkeypatch.setenv(name, key)
    (fault,) = faults()
    assert fault.startswith(f"{name}: must be printable ASCII")
    assert "s3cret" not in fault


def test_faults_of_providers_and_of_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_PORT", "eighty")
    monkeypatch.setenv("OPENAI_API_KEY", "a b")
    monkeypatch.setenv("OLLAMA_BASE_URL", "localhost")
    assert [fault.partition(":")[0] for fault in faults()] == ["RICORDO_PORT", "OPENAI_API_KEY", "OLLAMA_BASE_URL"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:11434", "https://host/v1/", "http://[::1]:8000", "HTTP://host"])
def test_a_usual_address_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("OLLAMA_BASE_URL", url)
    assert load_settings()[1].ollama_base_url == url


@pytest.mark.parametrize("handle", ["text-embedding-3-small", "openai/", "/x", "None", "nothing"])
def test_an_embedding_model_without_a_provider_stops_the_start(monkeypatch: pytest.MonkeyPatch, handle: str) -> None:
    monkeypatch.setenv("RICORDO_EMBEDDING", handle)
    (fault,) = faults()
    assert fault.startswith("RICORDO_EMBEDDING: must be the handle of an embedding model, provider/model, or none")


@pytest.mark.parametrize(
    "handle", ["openai/text-embedding-3-small", "openrouter/openai/x", "ollama/bge-m3:567m", "none"]
)
def test_an_embedding_model_is_a_handle_or_none(monkeypatch: pytest.MonkeyPatch, handle: str) -> None:
    monkeypatch.setenv("RICORDO_EMBEDDING", handle)
    assert load_settings()[0].embedding == handle
