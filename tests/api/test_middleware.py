"""What the outermost layer does itself, before FastAPI."""

import re
from pathlib import Path

import pytest

import isosim_client
from isosim import CONTRACT
from isosim.api.middleware import Envelope
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.processes import Server

SCORING = {
    "/", "/embed", "/invocations", "/percentile", "/rerank", "/score", "/similarity", "/tokenize",
    "/v1/embeddings", "/v1/rerank", "/v1/score", "/v2/rerank",
}  # fmt: skip


def test_scoring_routes_are_answered_before_fastapis_layers(tmp_path: Path) -> None:
    app = create_app(Settings(model_store=tmp_path))
    assert isinstance(app.envelope, Envelope)
    routes = app.envelope.scoring
    assert routes.keys() == SCORING
    assert all(route.methods == {"POST"} for route in routes.values())


@pytest.mark.parametrize("path", ["/info", "/similarity", "/nowhere", "/livez", "/console", "/metrics", "/v1/models"])
def test_every_answer_states_the_contracts_version(tiny_server: Server, path: str) -> None:
    """Errors and pages too: a client looks at it before it reads anything else."""
    response = tiny_server.client.get(path)
    assert response.headers.get_list("x-isosim-contract") == [CONTRACT], path


def test_info_and_client_state_the_contracts_version(tiny_server: Server) -> None:
    assert tiny_server.client.get("/info").json()["contract"] == CONTRACT == isosim_client.CONTRACT
    assert re.fullmatch(r"[1-9]\d*\.\d+", CONTRACT)
