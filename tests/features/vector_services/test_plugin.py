"""Which services are offered.

Those whose variables are set; none is called, and no client library is loaded.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Invalid
from ricordo.features.vector_services import feature
from ricordo.plugins import Plugins
from ricordo.search.vector_index import VectorIndex
from ricordo.settings import VectorSettings


def settings(**given: Any) -> VectorSettings:
    return VectorSettings.model_construct(**VectorSettings.model_validate(given).model_dump())


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VectorSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_service_is_offered_when_its_variables_are_set() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
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
    for given, names in cases:
        indexes = Plugins([("vector_services", feature)]).vector_indexes(settings(**given))
        assert list(indexes) == names, given
        assert all(
            isinstance(index, VectorIndex) and name == index.name for name, index in indexes.items()
        ), given


def test_two_plugins_may_not_offer_one_name() -> None:
    plugins = Plugins([("one", feature), ("two", feature)])
    assert plugins.vector_indexes(settings()) == {}
    with pytest.raises(Invalid, match='Two plugins offer a vector index named "qdrant"'):
        plugins.vector_indexes(settings(qdrant_url="http://host:6333"))


def test_no_client_library_is_loaded_before_its_first_use() -> None:
    """They take half a second to load, and most servers use none."""
    code = (
        "import sys\nfrom ricordo.features.vector_services import feature\nfrom ricordo.plugins "
        "import Plugins\nfrom ricordo.settings import VectorSettings\ngiven = "
        "VectorSettings(turbopuffer_api_key='k', turbopuffer_region='r', pinecone_api_key='k', "
        "pinecone_index_host='h.io', qdrant_url='http://h')\nindexes = Plugins([('vectors', "
        "feature)]).vector_indexes(given)\nprint(len(indexes), {'turbopuffer', 'pinecone', "
        "'qdrant_client', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3 set()", done.stderr
