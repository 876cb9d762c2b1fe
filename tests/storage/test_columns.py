"""Ids that are stored as bytes: whatever they look like, they come back as they were."""

from ricordo.domain.ids import new_id
from ricordo.storage.schema.columns import PackedId

UUID = "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9"


def test_an_id_of_ours_takes_seventeen_bytes() -> None:
    packed = PackedId("run").pack(id := new_id("run"))
    assert packed is not None
    assert (len(packed), PackedId("run").unpack(packed)) == (17, id)


def test_an_id_of_another_form_stays_as_it_is() -> None:
    others = ["", "run-1", f"step-{UUID}", UUID, f"run-{UUID.upper()}", f"run-{UUID}\n", f"run-{UUID}0", "läuft"]
    for id in (None, "sixteen letters.", *others):
        packed = PackedId("run").pack(id)
        assert packed == (None if id is None else id.encode())
        assert PackedId("run").unpack(packed) == id
