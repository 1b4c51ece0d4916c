"""Each step from a file to downloaded pairs, with a trouble in its middle: nothing is lost, nothing untrue is said."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit
from tests.console.test_matching import QUEUED, downloaded, pair, rows_of, table, tile
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

TEXTS = [*sentences(220), *(text.upper() for text in sentences(40))]
SLOW = {"offline": False, "latency": 250, "downloadThroughput": 100_000, "uploadThroughput": 20_000}  # ms, bytes/s
JUDGED = 3
PLACE = "document.querySelector('.judging .equal').getBoundingClientRect().top + scrollY"
# What the page says while the trouble lasts.
SAID = {
    ("file", "killed"): "The search for matches was not started: no answer from",
    ("file", "slow"): "Sending…",
    ("pairs", "killed"): "It goes on, or begins again when the server is back",
    ("judging", "killed"): re.compile(f"{JUDGED} judgements not sent yet; this browser holds them"),
    ("judging", "slow"): f"{JUDGED} of about 50",
    ("judging", "two tabs"): "1 pair that you judged was judged otherwise since",
    ("download", "killed"): "Nothing was downloaded: no answer from",
    ("download", "slow"): "Fetching…",
}


@dataclass
class Desk:
    """A server that can be killed and started again, and what was done at its console."""

    visit: Visit
    serve: Serve
    store: Path
    server: Server
    folder: Path
    step: str = ""
    trouble: str = ""
    job: str = ""
    judged: dict[frozenset[str], int] = field(default_factory=dict)  # texts -> label
    places: set[float] = field(default_factory=set)  # of the buttons that judge, on the page

    @property
    def site(self) -> Site:
        return Site(self.server, self.store)

    def restart(self) -> None:
        self.server = self.serve(model_store=self.store, encoder="tiny", local_worker=False, port=self.server.port)

    def open(self, place: str | None = None) -> Analyst:
        where = f"#/matches/{self.job}/similarity/0.5" if place is None else place
        analyst = self.visit(where, self.server)
        analyst.expected.append("net::ERR_")
        return analyst

    def says(self, analyst: Analyst) -> None:
        if self.trouble == "two tabs" and self.job:  # the tab is looked at again
            wait_until(lambda: self.labels().items() >= self.judged.items())
            analyst.page.evaluate("window.dispatchEvent(new Event('focus'))")
        if words := SAID.get((self.step, self.trouble)):
            analyst.sees(words)

    def labels(self) -> dict[frozenset[str], int]:
        lines = self.server.client.get(f"/matches/{self.job}/result?form=judged").raise_for_status().text.splitlines()
        return {frozenset((row["a"], row["b"])): row["label"] for row in map(json.loads, lines)}


class File:
    """A file is chosen and sent."""

    @staticmethod
    def begin(desk: Desk) -> Analyst:
        analyst = desk.open("#/")
        analyst.chooses_file("tickets.csv", table(TEXTS))
        analyst.understood()
        return analyst

    @staticmethod
    def act(desk: Desk, analyst: Analyst) -> None:
        analyst.presses("Find matches")

    @staticmethod
    def resume(desk: Desk, analyst: Analyst) -> None:
        analyst.presses("Try again")

    @staticmethod
    def ends(desk: Desk, analyst: Analyst) -> None:
        analyst.sees(QUEUED)
        assert analyst.heading() == "Matches in tickets.csv"
        every = desk.site.get("/matches")["matches"]
        assert [one["rows"] for one in every] == [[len(TEXTS)]] * (2 if desk.trouble == "two tabs" else 1)


class Pairs:
    """The match is followed until its pairs are there."""

    @staticmethod
    def begin(desk: Desk) -> Analyst:
        desk.job = desk.site.post("/matches", a=TEXTS)["job"]
        analyst = desk.open()
        analyst.sees(QUEUED)
        return analyst

    @staticmethod
    def act(desk: Desk, analyst: Analyst) -> None:
        if desk.trouble != "killed":
            desk.site.work()

    @staticmethod
    def resume(desk: Desk, analyst: Analyst) -> None:
        desk.site.work()

    @staticmethod
    def ends(desk: Desk, analyst: Analyst) -> None:
        passing = desk.site.get(f"/matches/{desk.job}?similarity=0.5")["answer"]["passing"]
        assert tile(analyst).startswith(f"{passing:,} pairs")
        assert "Not judged: how many of these pairs are right is unknown." in tile(analyst)


class Judging(Pairs):
    """Pairs are judged by keys; in two tabs the same pair is judged the same, and later different."""

    @staticmethod
    def begin(desk: Desk) -> Analyst:
        desk.job = desk.site.post("/matches", a=TEXTS)["job"]
        desk.site.work()
        analyst = desk.open()
        tile(analyst)
        pair(analyst)
        return analyst

    @staticmethod
    def act(desk: Desk, analyst: Analyst) -> None:
        for number in range(JUDGED):
            texts = frozenset(pair(analyst))
            analyst.page.locator(".judging .pair").scroll_into_view_if_needed()
            label = int(number == 2 or (number == 0 and texts not in desk.judged))
            analyst.page.keyboard.press(str(label))
            desk.judged[texts] = label
            desk.places.add(analyst.page.evaluate(PLACE))

    @staticmethod
    def resume(desk: Desk, analyst: Analyst) -> None:
        pass

    @staticmethod
    def ends(desk: Desk, analyst: Analyst) -> None:
        wait_until(lambda: desk.labels() == desk.judged)
        tile(analyst)
        assert desk.places == {analyst.page.evaluate(PLACE)}  # the buttons stay where they are
        analyst.sees(f"{len(desk.judged)} of about 50")
        analyst.page.locator(".verdict", has_text="not sent yet").wait_for(state="hidden")
        wait_until(lambda: analyst.page.evaluate("Object.keys(localStorage).filter((one) => /judged/.test(one))") == [])


class Download(Judging):
    """The pairs that pass are downloaded."""

    @staticmethod
    def act(desk: Desk, analyst: Analyst) -> None:
        if desk.trouble == "two tabs":  # the other one judges the most alike pair
            desk.site.post(f"/matches/{desk.job}/labels", labels=[{"pair": 0, "label": 0}])
        else:
            analyst.presses(re.compile("^Download$"))

    @staticmethod
    def resume(desk: Desk, analyst: Analyst) -> None:
        with analyst.page.expect_download():
            analyst.presses("Try again")

    @staticmethod
    def ends(desk: Desk, analyst: Analyst) -> None:
        path = downloaded(analyst, "Download", desk.folder)
        answer = desk.site.get(f"/matches/{desk.job}?similarity=0.5")["answer"]
        assert len(rows_of(path)) == answer["passing"]
        wait_until(lambda: tile(analyst).startswith(f"{answer['passing']:,} pairs"))
        assert answer["left_out"] == (desk.trouble == "two tabs")
        if answer["left_out"]:
            assert "1 pair that was judged different is left out." in analyst.text("main")


STEPS: dict[str, type[File | Pairs]] = {"file": File, "pairs": Pairs, "judging": Judging, "download": Download}


@pytest.fixture
def desk(visit: Visit, serve: Serve, store: Path, tmp_path: Path) -> Desk:
    """On a store of its own, whose jobs no other test sees."""
    return Desk(visit, serve, store, serve(model_store=store, encoder="tiny", local_worker=False), tmp_path)


@pytest.mark.parametrize("trouble", ["killed", "closed", "two tabs", "slow"])
@pytest.mark.parametrize("name", STEPS)
def test_a_trouble_in_a_step_loses_nothing_and_nothing_untrue_is_said(desk: Desk, name: str, trouble: str) -> None:
    step, desk.step, desk.trouble = STEPS[name], name, trouble
    analyst: Any = step.begin(desk)
    if trouble == "killed":
        desk.server.kill()
        step.act(desk, analyst)
        desk.says(analyst)
        desk.restart()
        step.resume(desk, analyst)
    elif trouble == "closed":
        context = analyst.page.context
        if name != "pairs":
            # A post of files arrives, and its answer is lost; judgements do not arrive, and no download ends.
            lost = re.compile(r"/(matches|labels|result)(\?.*)?$")
            analyst.page.route(lost, lambda route: name == "file" and route.fetch())
        step.act(desk, analyst)
        analyst.page.close()
        analyst = Analyst.at(context, desk.server.url)
        analyst.go(f"#/matches/{desk.job}/similarity/0.5" if desk.job else "#/")
        if not desk.job:
            analyst.presses(re.compile("^Open the match of"), "link")
    elif trouble == "two tabs":
        other = step.begin(desk) if name == "file" else desk.open()
        step.act(desk, other)
        step.act(desk, analyst)
        desk.says(other)
    else:
        slow = analyst.page.context.new_cdp_session(analyst.page)
        slow.send("Network.enable")
        slow.send("Network.emulateNetworkConditions", SLOW)
        step.act(desk, analyst)
        desk.says(analyst)
    step.ends(desk, analyst)
