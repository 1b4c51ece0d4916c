"""An encoder's identity."""

import dataclasses
from typing import Any

import pytest

from isosim.encoders.spec import GRAPH_FORMAT, EncoderSpec

SPEC = EncoderSpec("somewhere", "w", "t", "mean", 6, 256, "", "fp32", 384, 0)
FIELDS = [field.name for field in dataclasses.fields(EncoderSpec)]


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "source"])
def test_whatever_decides_a_vector_changes_the_digest(name: str) -> None:
    value = getattr(SPEC, name)
    changed: dict[str, Any] = {name: value + 1 if isinstance(value, int) else value + "x"}
    other = dataclasses.replace(SPEC, **changed)
    assert other.digest != SPEC.digest


def test_where_the_weights_came_from_does_not() -> None:
    assert dataclasses.replace(SPEC, source="elsewhere").digest == SPEC.digest


def test_a_release_that_changes_digests_by_accident_would_orphan_every_stored_calibration() -> None:
    assert GRAPH_FORMAT == 1
    assert SPEC.digest == "a58938c69e048dce54113b347a8ee48497df45654386bf3b1f3e5276f3c2f10f"
