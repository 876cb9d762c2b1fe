"""One scene for each module.

After every test, each request that a model server got must be valid for that server.
"""

from collections.abc import Iterator

import pytest

from tests.seams.scene import Scene, open_scene
from tests.support.faults_wire import faults_of


@pytest.fixture(scope="module")
def running_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A scene that the tests of one module share; they use the fixture `scene`."""
    with open_scene(tmp_path_factory.mktemp("data")) as opened:
        yield opened


@pytest.fixture
def scene(running_scene: Scene) -> Iterator[Scene]:
    running_scene.models.requests.clear()
    running_scene.models._answers.clear()
    running_scene.games.played.clear()
    # Refusals of models in one test must not affect the next test.
    learned = running_scene.server.runtime.models.learned
    for lessons in (learned._entries, learned._helped, learned._accepted):
        lessons.clear()
    yield running_scene
    assert [fault for body in running_scene.asked for fault in faults_of(body)] == []
    assert not running_scene.models._answers, "the models were called less often than scripted"
