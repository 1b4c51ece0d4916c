"""What the outermost layer does itself, before FastAPI."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route

import isosim_client
from isosim import CONTRACT
from isosim.api.middleware import Envelope
from isosim.api.parameters import flat
from isosim.api.policy import SCORING
from isosim.api.requests import ScoringRoute
from isosim.server.app import create_app
from isosim.settings import Settings
from tests.processes import Server


def test_every_route_declares_its_policy_and_is_found_with_it(tmp_path: Path) -> None:
    app = create_app(Settings(model_store=tmp_path))
    assert isinstance(app.middleware_stack, Envelope)
    assert [route for route, _ in app.middleware_stack.routes] == list(flat(app.routes))
    for route, policy in app.middleware_stack.routes:
        assert policy.key == (policy.scope is not None)
        assert policy.timed or policy.scope, f"{route} runs without an end for callers without a key"
        assert policy == SCORING or not isinstance(route, ScoringRoute)
        if isinstance(route, Route) and "{" not in route.path:
            for method in route.methods or ():
                scope = {"type": "http", "method": method, "path": route.path, "headers": []}
                assert app.middleware_stack.route_of(scope) == (route, policy)


@pytest.mark.parametrize("route", [Route("/new", print), Mount("/new", FastAPI()), APIRoute("/new", lambda: None)])
def test_a_server_with_a_route_without_a_policy_does_not_start(tmp_path: Path, route: BaseRoute) -> None:
    app = create_app(Settings(model_store=tmp_path))
    with pytest.raises(TypeError, match="'/new' declares no policy"):
        Envelope(app, [*app.routes, route])


@pytest.mark.parametrize("path", ["/info", "/similarity", "/nowhere", "/livez", "/console", "/metrics", "/v1/models"])
def test_every_answer_states_the_contracts_version(tiny_server: Server, path: str) -> None:
    """Errors and pages too: a client looks at it before it reads anything else."""
    response = tiny_server.client.get(path)
    assert response.headers.get_list("x-isosim-contract") == [CONTRACT] == [isosim_client.CONTRACT], path
    assert re.fullmatch(r"[1-9]\d*\.\d+", CONTRACT)
