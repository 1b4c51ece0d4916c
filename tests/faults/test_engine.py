"""The encoder's graph fails at run time on some text: that caller is told, and nobody else notices."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from isosim.encoders.store import EncoderStore
from tests.faults.load import Load
from tests.processes import Serve

POISON = 4  # the token [MASK]


def failing_on(token: int, model: onnx.ModelProto, dim: int) -> onnx.ModelProto:
    """The same graph, but a batch that holds the token asks for a shape that its vectors do not have."""
    graph = model.graph
    for node in graph.node:
        node.output[:] = ["whole" if name == "pooled" else name for name in node.output]
    constants = {"token": [token], "every": [-1], "dim": [dim]}
    for name, value in constants.items():
        graph.initializer.append(helper.make_tensor(f"poison.{name}", TensorProto.INT64, [1], value))
    graph.node.extend(
        [
            helper.make_node("Equal", ["input_ids", "poison.token"], ["poison.here"]),
            helper.make_node("Cast", ["poison.here"], ["poison.ones"], to=TensorProto.INT64),
            helper.make_node("ReduceMax", ["poison.ones"], ["poison.any"], keepdims=0),
            helper.make_node("Add", ["poison.dim", "poison.any"], ["poison.width"]),
            helper.make_node("Concat", ["poison.every", "poison.width"], ["poison.shape"], axis=0),
            helper.make_node("Reshape", ["whole", "poison.shape"], ["pooled"]),
        ]
    )
    assert all(numpy_helper.to_array(tensor).size for tensor in graph.initializer)
    return model


@pytest.fixture
def poisoned(store: Path) -> Path:
    """A store whose encoder `poisoned` is `tiny` but for the token it fails on."""
    encoders = EncoderStore.at(store)
    tiny = encoders.find("tiny")

    def write(folder: Path) -> dict[str, object]:
        for file in tiny.folder.iterdir():
            if file.name not in ("manifest.json", "encoder.onnx"):
                (folder / file.name).write_bytes(file.read_bytes())
        onnx.save(failing_on(POISON, onnx.load(tiny.encoder), tiny.spec.dim), folder / "encoder.onnx")
        return {}

    encoders.add("poisoned", replace(tiny.spec, weights="0" * 64), write)
    return store


def test_a_text_the_graph_fails_on_is_424_and_those_that_share_its_batch_get_their_scores(
    serve: Serve, poisoned: Path
) -> None:
    server = serve(model_store=poisoned, encoder="poisoned", memory_cache_bytes=0)
    with Load(server, pause=0.0) as load:
        for number in range(40):
            pairs = [[f"[MASK] {number}", "the garden gate"], ["a wooden boat", f"letters {number}"]]
            answer = server.client.post("/similarity", json={"pairs": pairs})
            assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend"), answer.text
            assert "[MASK]" not in answer.json()["error"]
        load.answered(10)
    load.nothing_was_lost(10)
    assert server.client.get("/livez").status_code == 200
