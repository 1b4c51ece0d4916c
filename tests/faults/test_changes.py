"""Changes of champions and labels whose answers are lost or come late: made once, and answered as made."""

from pathlib import Path

import httpx
import httpx2
import pytest

from isosim.encoders.store import EncoderStore
from isosim_client import Client, Retries
from tests.processes import Serve, Server, wait_until
from tests.stores import copy_version, domains_of
from tests.text import sentences

NEWS = "/domains/news"
LABELS = [(text, text, number % 2) for number, text in enumerate(sentences(40))]


@pytest.fixture
def server(serve: Serve, news: Path) -> Server:
    return serve(model_store=news, encoder="tiny")


def answering(store: Path) -> tuple[int | None, int | None]:
    found = domains_of(store).read("news").served(EncoderStore.at(store).find("tiny").digest)
    return found.champion, found.previous


def third_version(store: Path) -> int:
    """A copy of the first one, not promoted."""
    return copy_version(domains_of(store), "news", 1)


def champion(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    found: int = response.json()["champion"]
    return found


def test_a_change_is_answered_as_made_whatever_cannot_be_read_after_it(server: Server, news: Path) -> None:
    place = news / "changes.json"
    place.rename(news / "away.json")
    place.mkdir()  # in the place of the log of changes, to the end of the test: no server can look what has changed
    assert champion(server.client.post(f"{NEWS}/rollback")) == 1  # as an older client sends it
    assert champion(server.client.put(f"{NEWS}/champion", json={"version": 2})) == 2
    assert answering(news) == (2, 1)
    with Client(server.url, retries=Retries(first=0.01)) as client:
        answer = client.rollback("news")
    assert (answer.champion, answer.previous) == (1, 2) == answering(news)
    line = "a change was made, but the model store could not be read after it"
    wait_until(lambda: server.log.read_text().count(line) == 3)  # a thread writes the log


class LostAnswers(httpx2.HTTPTransport):
    """The server gets every change, and the first answers to it are lost."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.left = lost

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        if request.method != "GET" and self.left:
            self.left -= 1
            raise httpx2.ReadError("the answer is lost")
        return answer


def test_changes_whose_answers_are_lost_are_made_once(server: Server, news: Path) -> None:
    def client(lost: int = 2) -> Client:
        return Client(server.url, transport=LostAnswers(lost), retries=Retries(first=0.01))

    assert client().rollback("news").champion == 1
    assert client().rollback("news").champion == 2  # on purpose
    assert client().promote("news", 1).champion == 1
    assert answering(news) == (1, 2)
    assert third_version(news) == 3
    client().delete_version("news", 3)
    assert [version["version"] for version in server.client.get(NEWS).json()["versions"]] == [1, 2]
    client().add_labels("news", LABELS)
    assert len(server.client.get("/calibrate").json()["jobs"]) == 1
