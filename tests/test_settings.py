"""Settings of the server, of providers and of vector services.

The tests check the sources of settings, and the errors that stop a start.
"""

import os
from pathlib import Path

import pytest

import ricordo
from ricordo.errors import Invalid
from ricordo.features.vector_services.options import VectorSettings
from ricordo.setting_types import PREFIX, feature_settings, variables_of
from ricordo.settings import ProviderSettings, Settings, load_settings

PROGRAM = Path(ricordo.__file__).parent


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the variables and the `.env` of the person who runs the tests."""
    known = {name for kind in (VectorSettings, ProviderSettings) for name in variables_of(kind)}
    for name in list(os.environ):
        if name.upper().startswith(PREFIX) or name.upper() in known:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def faults(**options: object) -> list[str]:
    with pytest.raises(Invalid) as caught:
        load_settings(**options)
    return str(caught.value).splitlines()


def test_no_setting_is_required_and_every_setting_has_a_description() -> None:
    settings, providers = load_settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8283)
    assert settings.data_dir == Path.home() / ".ricordo"
    assert settings.database_path == settings.data_dir / "ricordo.db"
    assert settings.api_key is None
    vectors = VectorSettings().model_dump()
    assert vectors.pop("namespace_prefix") == "ricordo"
    assert {*providers.model_dump().values(), *vectors.values()} == {None}
    for model in (Settings, ProviderSettings, *feature_settings()):
        for name, field in model.model_fields.items():
            assert (field.description or "").endswith("."), name


def test_an_option_overrides_environment_then_file_then_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = [load_settings()[0].port]
    (tmp_path / ".env").write_text("RICORDO_PORT=1001\n")
    ports.append(load_settings()[0].port)
    monkeypatch.setenv("RICORDO_PORT", "1002")
    ports.append(load_settings()[0].port)
    ports += [
        load_settings(port=1003)[0].port,
        load_settings(port=None)[0].port,
        load_settings(port=0)[0].port,
    ]
    assert ports == [8283, 1001, 1002, 1003, 1002, 0]


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RICORDO_PORT", "RICORDO_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "")
    settings, providers = load_settings()
    assert (settings.port, settings.api_key, providers.openai_api_key) == (8283, None, None)


ADDRESS, NO_ADDRESSES = (
    "must be an address, such as http://",
    ("localhost:1", "ftp://host", "http://", "http://host:0"),
)
ASCII, NO_KEYS = (
    "must be printable ASCII",
    ("s3cret-kéy", "s3cret key", "s3cret-key\n", "s3cret\tkey", " s3cret"),
)
HANDLE = "must be the handle of an embedding model, provider/model, or none"
FILE = "must be sqlite:///path/to/file or postgresql://"
SERVER = "must be postgresql://user:password@host/database"
MALFORMED: list[tuple[str, str, str]] = [
    *(
        (name, "8283", "is not a setting of Ricordo.")
        for name in ("RICORDO_PROT", "ricordo_prot", "RICORDO_")
    ),
    ("RICORDO_PORT", "eighty", ""),
    ("RICORDO_PORT", "65536", ""),
    ("RICORDO_MODEL_TIMEOUT", "0", ""),
    ("RICORDO_MODEL_RETRIES", "-1", ""),
    ("RICORDO_LOG_LEVEL", "loud", ""),
    ("RICORDO_FIND_LOCAL_MODELS", "maybe", ""),
    *(
        ("RICORDO_EMBEDDING", handle, HANDLE)
        for handle in ("text-embedding-3-small", "openai/", "/x", "None")
    ),
    *(
        ("RICORDO_DATABASE_URL", url, FILE)
        for url in ("mysql://x", "ricordo.db", "sqlite:///", "sqlite:///:memory:")
    ),
    ("RICORDO_DATABASE_URL", "postgresql://user:s3cret@host", SERVER),
    ("RICORDO_DATABASE_URL", "postgresql://user:s3cret@host/", SERVER),
    ("RICORDO_DATABASE_URL", "postgresql:///ricordo", SERVER),
    ("RICORDO_DATABASE_URL", "postgresql://user:s3@cret@host/ricordo", SERVER),
    ("RICORDO_DATABASE_URL", "postgresql://user:s3/cret@host/ricordo", SERVER),
    ("RICORDO_DATABASE_URL", "postgresql://user:s3cret@host:port/ricordo", SERVER),
    (
        "RICORDO_DATABASE_URL",
        "sqlite:///~nobody-of-this-name/x",
        "is in the home folder of an unknown user",
    ),
    (
        "RICORDO_DATABASE_URL",
        f"sqlite:///{PROGRAM}/storage/ricordo.db",
        f"is inside the folder of the program, {PROGRAM}.",
    ),
    ("RICORDO_DATA_DIR", "~nobody-of-this-name/x", "is in the home folder of an unknown user"),
    *(
        ("RICORDO_DATA_DIR", f"{PROGRAM}/{path}", "is inside the folder of the program")
        for path in ("", "data", "a/../storage/x")
    ),
    *(
        (name, url, ADDRESS)
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "VLLM_API_BASE")
        for url in NO_ADDRESSES
    ),
    *(
        ("OPENAI_BASE_URL", url, ADDRESS)
        for url in ("http://host:99999", "http://a b", "http://[x")
    ),
    *(
        (name, key, ASCII)
        for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")
        for key in NO_KEYS
    ),
    ("TURBOPUFFER_API_KEY", "s3cret key", ASCII),
    ("QDRANT_API_KEY", "s3crét", ASCII),
    ("TURBOPUFFER_REGION", "evil.example/", ""),
    ("TURBOPUFFER_REGION", "aws-us-east-1\n", ""),
    ("TURBOPUFFER_BASE_URL", "host", ADDRESS),
    ("QDRANT_URL", "localhost:6333", ADDRESS),
    ("PINECONE_INDEX_HOST", "a b", "must be a host"),
    ("PINECONE_INDEX_HOST", "ftp://host.io", "must be a host"),
    ("RICORDO_VECTOR_PREFIX", "a/b", ""),
    (
        "RICORDO_SANDBOX",
        "none",
        "Input should be 'auto', 'bubblewrap', 'landlock' or 'none-i-accept-the-risk'",
    ),
    ("RICORDO_SANDBOX_CALLS", "0", ""),
    ("RICORDO_ROOT_PATH", "ricordo", "Path below which a proxy serves this server, like /ricordo."),
    ("RICORDO_TRUSTED_PROXIES", "proxy", "addresses or networks."),
    ("GOOGLE_CLOUD_LOCATION", "EU!", "It needs another form. Region of Vertex AI"),
    ("RICORDO_VECTOR_PREFIX", "x" * 33, ""),
]


def test_an_invalid_or_unknown_setting_stops_the_start_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value, words in MALFORMED:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            (fault,) = faults()
        assert fault.startswith(name), (name, value)
        assert words in fault, (name, value, fault)
        assert "cret" not in fault


def test_only_unknown_ricordo_settings_in_the_file_stop_the_start(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").write_text("POSTGRES_PASSWORD=x\nRICORDO_COLOUR=red\n")
    assert [fault.split()[0] for fault in faults()] == ["RICORDO_COLOUR"]


def test_several_faults_are_named_at_once_and_show_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"RICORDO_PORT": "eighty", "RICORDO_LOG_FORMAT": "xml", "RICORDO_COLOUR": "red"}
    wrong |= {"ANTHROPIC_API_KEY": "a b", "OLLAMA_BASE_URL": "localhost"}
    for name, value in {
        **wrong,
        "RICORDO_API_KEY": "s3cret-key",
        "OPENAI_API_KEY": "s3cret-key",
    }.items():
        monkeypatch.setenv(name, value)
    assert {fault.split()[0].rstrip(":") for fault in faults()} == wrong.keys()
    assert "s3cret" not in "".join(faults())
    for name in wrong:
        monkeypatch.delenv(name)
    assert "s3cret" not in repr(load_settings())
    (fault,) = faults(port=-1)
    assert fault.startswith("RICORDO_PORT: ")


def test_a_blank_key_is_none() -> None:
    for key in (None, "", "   "):
        assert load_settings(api_key=key)[0].api_key is None
    assert load_settings(host="0.0.0.0", api_key="s3cret-key" * 2)[0].api_key  # noqa: S104


def test_a_short_key_is_enough_only_on_this_machine() -> None:
    assert load_settings(api_key="s3cret-key")[0].api_key
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org"):  # noqa: S104
        with pytest.raises(
            Invalid, match=r"^RICORDO_API_KEY has fewer than 20 characters"
        ) as refused:
            load_settings(host=host, api_key="k" * 19)
        assert "kkk" not in str(refused.value)
    assert load_settings(host="10.1.2.3", api_key="k" * 20)[0].api_key


def test_a_data_folder_becomes_absolute_and_may_be_next_to_the_program(tmp_path: Path) -> None:
    beside = PROGRAM.with_name("ricordo-data")
    assert load_settings(data_dir=beside)[0].data_dir == beside
    assert load_settings(data_dir="kept")[0].data_dir == tmp_path.resolve() / "kept"
    settings = load_settings(
        database_url=f"sqlite:///{tmp_path}/other.db", data_dir=tmp_path / "kept"
    )[0]
    assert settings.database_path == tmp_path.resolve() / "other.db"
    assert (
        load_settings(database_url="sqlite:///~/other.db")[0].database_path
        == Path.home() / "other.db"
    )


def test_a_folder_that_links_to_itself_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for folder in ("one", "one/data"):
        (fault,) = faults(data_dir=folder)
        assert fault.startswith("RICORDO_DATA_DIR:"), fault
        assert f"{folder} leads through a symbolic link to itself" in fault


def test_a_postgresql_url_selects_the_database() -> None:
    for url in (
        "postgresql://user:s3cret@host/ricordo",
        "postgres://host:5433/ricordo",
        "postgresql://user@/ricordo?host=/var/run/postgresql",
        "postgresql://user:s%40cret@[::1]:5432/ricordo?sslmode=require",
    ):
        settings = load_settings(database_url=url)[0]
        assert settings.postgres_url == url
        assert settings.database_path == settings.data_dir / "ricordo.db"
        assert "s3cret" not in repr(settings)
        assert "host" not in repr(settings.database_url)
    assert load_settings(database_url="sqlite:///x.db")[0].postgres_url is None


def test_services_use_their_usual_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text(
        "ANTHROPIC_API_KEY=from-file\nOPENAI_API_BASE=http://localhost:1/v1\nTURBOPUFFER_REGION=aws-us-east-1\n"
    )
    monkeypatch.setenv("GOOGLE_API_KEY", "from-environment")
    monkeypatch.setenv("PINECONE_INDEX_HOST", "my-index-1.svc.region.pinecone.io")
    monkeypatch.setenv("QDRANT_PATH", "~/vectors")
    monkeypatch.setenv("RICORDO_VECTOR_PREFIX", "school")
    providers, vectors = load_settings()[1], VectorSettings()
    assert providers.anthropic_api_key.get_secret_value() == "from-file"
    assert providers.openai_base_url == "http://localhost:1/v1"
    assert providers.gemini_api_key.get_secret_value() == "from-environment"
    assert (vectors.turbopuffer_region, vectors.qdrant_path) == (
        "aws-us-east-1",
        Path.home() / "vectors",
    )
    assert (vectors.pinecone_index_host, vectors.namespace_prefix) == (
        "my-index-1.svc.region.pinecone.io",
        "school",
    )


def test_valid_addresses_and_handles_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://127.0.0.1:11434", "https://host/v1/", "http://[::1]:8000", "HTTP://host"):
        monkeypatch.setenv("OLLAMA_BASE_URL", url)
        assert load_settings()[1].ollama_base_url == url
    for handle in (
        "openai/text-embedding-3-small",
        "openrouter/openai/x",
        "ollama/bge-m3:567m",
        "none",
    ):
        assert load_settings(embedding=handle)[0].embedding == handle


def test_two_addresses_for_one_vector_service_stop_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one, other in (
        ("TURBOPUFFER_REGION", "TURBOPUFFER_BASE_URL"),
        ("QDRANT_URL", "QDRANT_PATH"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(one, "aws" if one.endswith("REGION") else "http://host:6333")
            patch.setenv(other, "http://host")
            assert faults() == [f"{one} and {other} are both set. Set one of them."]


def test_ralph_settings_are_accepted_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENROUTER_API_KEY", "RICORDO_MODEL"):  # monkeypatch removes them at the end
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("RALPH_OPENROUTER_API_KEY", "sk-or-older")
    (tmp_path / ".env").write_text(
        "RALPH_OPENROUTER_MODEL=anthropic/claude-sonnet-4\nRALPH_DOLT_HOST=db\n"
    )
    settings, providers = load_settings()
    assert settings.model == "openrouter/anthropic/claude-sonnet-4"
    assert providers.openrouter_api_key
    assert providers.openrouter_api_key.get_secret_value() == "sk-or-older"
    told = "\n".join(caplog.messages)
    assert "RALPH_OPENROUTER_MODEL is an older name. Set RICORDO_MODEL instead." in told
    assert "RALPH_DOLT_HOST is a setting of an older server." in told
    assert "docs/people/remotes.md" in told
    assert "sk-or" not in told
    monkeypatch.setenv("RICORDO_MODEL", "openrouter/other")
    assert load_settings()[0].model == "openrouter/other"
