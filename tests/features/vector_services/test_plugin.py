"""The offered services are those whose variables are set.

None is called, and no client library is loaded.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ricordo.errors import Invalid
from ricordo.features.vector_services import feature
from ricordo.features.vector_services.options import VectorSettings
from ricordo.plugins import Plugins
from ricordo.search.vector_index import VectorIndex
from ricordo.setting_types import variables_of
from ricordo.settings import Settings

SETTINGS = Settings.model_construct()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in variables_of(VectorSettings):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_service_is_offered_when_its_variables_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({}, []),
        ({"turbopuffer_api_key": "k"}, []),
        ({"turbopuffer_region": "aws-us-east-1"}, []),
        ({"turbopuffer_api_key": "k", "turbopuffer_region": "aws-us-east-1"}, ["tpuf"]),
        ({"turbopuffer_api_key": "k", "turbopuffer_base_url": "http://host"}, ["tpuf"]),
        ({"pinecone_api_key": "k"}, []),
        ({"pinecone_api_key": "k", "pinecone_index_host": "host.io"}, ["pinecone"]),
        ({"qdrant_api_key": "k"}, []),
        ({"qdrant_url": "http://host:6333"}, ["qdrant"]),
        ({"qdrant_path": "~/vectors"}, ["qdrant"]),
    ]
    for variables, names in cases:
        with monkeypatch.context() as patch:
            for name, text in variables.items():
                patch.setenv(name.upper(), text)
            indexes = Plugins([("vector_services", feature)]).vector_indexes(SETTINGS)
        assert list(indexes) == names, variables
        assert all(
            isinstance(index, VectorIndex) and name == index.name for name, index in indexes.items()
        ), variables


def test_two_plugins_with_one_index_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = Plugins([("one", feature), ("two", feature)])
    assert plugins.vector_indexes(SETTINGS) == {}
    monkeypatch.setenv("QDRANT_URL", "http://host:6333")
    with pytest.raises(Invalid, match='Two plugins offer a vector index named "qdrant"'):
        plugins.vector_indexes(SETTINGS)


def test_no_client_library_is_loaded_before_its_first_use() -> None:
    """The libraries take half a second to load, and most servers use none."""
    code = (
        "import sys\nfrom ricordo.features.vector_services import feature\nfrom ricordo.plugins "
        "import Plugins\nindexes = Plugins([('vectors', feature)]).vector_indexes(None)\n"
        "print(len(indexes), {'turbopuffer', 'pinecone', 'qdrant_client', 'numpy'} & "
        "set(sys.modules))"
    )
    variables = {
        "TURBOPUFFER_API_KEY": "k",
        "TURBOPUFFER_REGION": "r",
        "PINECONE_API_KEY": "k",
        "PINECONE_INDEX_HOST": "h.io",
        "QDRANT_URL": "http://h",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "3 set()", done.stderr
