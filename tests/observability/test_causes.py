"""The cause of every answer with 5xx or 424 is in the log once for each request id, at the default level."""

from collections.abc import Callable
from pathlib import Path

from isosim.api.errors import TABLE
from tests.observability.conftest import Line, event, events
from tests.observability.indiscreet import KINDS
from tests.processes import Server

ACCESS = "isosim.access"
OURS = {error.__name__: status for error, (status, _) in TABLE.items() if status >= 500 or status == 424}
UNEXPECTED = {"pydantic", "KeyError", "json", "group", "chain", "RuntimeError"}
FAILURES = OURS | dict.fromkeys(UNEXPECTED, 500) | {"OSError": 503}


def cause_of(log: Path, request_id: str) -> Line:
    """The access line, and no other line of this request names a cause."""
    line = event(log, logger=ACCESS, request_id=request_id)
    assert [one for one in events(log, request_id=request_id) if "error" in one] == [line]
    return line


def test_every_kind_of_failure_names_its_cause_once_and_nothing_else_is_an_error(
    indiscreet: Callable[..., Server], store: Path
) -> None:
    server = indiscreet(model_store=store, encoder="tiny")
    answered = {
        kind: server.client.post(f"/fail/{kind}", content="w", headers={"x-request-id": kind}).status_code
        for kind in KINDS
        if kind != "left"
    }
    assert {kind: status for kind, status in answered.items() if status >= 500 or status == 424} == FAILURES
    for kind, status in FAILURES.items():
        line = cause_of(server.log, kind)
        assert (line["level"], line["status"]) == ("error", status)
        assert kind in line["error"] or kind in ("pydantic", "json", "group", "chain")
        assert ("stack" in line) == (kind not in OURS)
    for kind in answered:
        if kind not in FAILURES:
            line = event(server.log, logger=ACCESS, request_id=kind)
            assert (line["level"], "error" in line) == ("info", False)
