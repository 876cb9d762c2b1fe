import pytest

from tests.support.serving import StrictLetta

HANDLES = ["ricordo/librarian", "scripted/model", "scripted/small", "scripted/pieces"]


def test_every_usable_model_is_listed(client: StrictLetta) -> None:
    models = client.models.list()

    assert [model.handle for model in models] == HANDLES
    assert {model.handle: model.max_context_window for model in models}["scripted/small"] == 16_000
    assert {model.handle: (model.name, model.provider_name) for model in models}["scripted/small"] == (
        "small",
        "scripted",
    )
    assert {model.provider_type for model in models} == {"openai"}


@pytest.mark.parametrize(
    ("query", "handles"),
    [
        ({"provider_name": "ricordo"}, ["ricordo/librarian"]),
        ({"provider_name": "nobody"}, []),
        ({"provider_type": "openai"}, HANDLES),
        ({"provider_type": "anthropic"}, []),
        ({"provider_category": ["base"]}, HANDLES),
        ({"provider_category": ["byok"]}, []),
    ],
)
def test_models_are_filtered(client: StrictLetta, query: dict[str, object], handles: list[str]) -> None:
    assert [model.handle for model in client.models.list(**query)] == handles  # type: ignore[arg-type]
