"""Which services are offered: those whose variables are set, by one door for ours and anyone's, and nobody is called."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ricordo.errors import Invalid
from ricordo.integrations import plugin
from ricordo.plugins import Plugins
from ricordo.search.vector_index import VectorIndex
from ricordo.settings import VectorSettings
from tests.support.notebook import Notebooks


def settings(**given: Any) -> VectorSettings:
    """Settings that read neither the environment nor a file."""
    return VectorSettings.model_construct(**VectorSettings.model_validate(given).model_dump())


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VectorSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("given", "names"),
    [
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
    ],
)
def test_a_service_is_offered_when_its_variables_are_set(given: dict[str, Any], names: list[str]) -> None:
    indexes = Plugins([("integrations", plugin)]).vector_indexes(settings(**given))
    assert list(indexes) == names
    assert all(isinstance(index, VectorIndex) and name == index.name for name, index in indexes.items())


def test_two_plugins_may_not_offer_one_name() -> None:
    plugins = Plugins([("one", plugin), ("two", plugin)])
    assert plugins.vector_indexes(settings()) == {}
    with pytest.raises(Invalid, match='Two plugins offer a vector index named "qdrant"'):
        plugins.vector_indexes(settings(qdrant_url="http://host:6333"))


def test_no_client_library_is_loaded_before_its_first_use() -> None:
    """They take half a second to load, and most servers use none."""
    code = (
        "import sys\n"
        "from ricordo.integrations import plugin\n"
        "from ricordo.settings import VectorSettings\n"
        "given = VectorSettings(turbopuffer_api_key='k', turbopuffer_region='r', pinecone_api_key='k', "
        "pinecone_index_host='h.io', qdrant_url='http://h')\n"
        "print(len(plugin.vector_indexes(given)), {'turbopuffer', 'pinecone', 'qdrant_client', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3 set()", done.stderr


def test_two_plugins_may_not_offer_one_kind_of_remote_and_each_must_be_one() -> None:
    class Odd:
        def memory_remotes(self) -> list[object]:
            return [object()]

    assert list(Plugins([("integrations", plugin), ("notes", Notebooks())]).memory_remotes()) == [
        "git",
        "dolt",
        "notebook",
    ]
    with pytest.raises(Invalid, match='Two plugins offer remotes of the kind "git"'):
        Plugins([("one", plugin), ("two", plugin)]).memory_remotes()
    with pytest.raises(Invalid, match="object is no kind of remote: it needs kind, read and follow"):
        Plugins([("odd", Odd())]).memory_remotes()
