"""What the outermost layer does itself, before FastAPI."""

from pathlib import Path

from service.api.middleware import Envelope
from service.server.app import create_app
from service.settings import Settings

SCORING = {
    "/", "/decode", "/embed", "/invocations", "/percentile", "/rerank", "/score", "/similarity", "/tokenize",
    "/v1/embeddings", "/v1/rerank", "/v1/score", "/v2/rerank",
}  # fmt: skip


def test_scoring_routes_are_answered_before_fastapis_layers(tmp_path: Path) -> None:
    app = create_app(Settings(model_store=tmp_path))
    assert isinstance(app.envelope, Envelope)
    routes = app.envelope.scoring
    assert routes.keys() == SCORING
    assert all(route.methods == {"POST"} for route in routes.values())
