"""Each step from a file to downloaded pairs, with a trouble in its middle: nothing is lost, nothing untrue is said."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.console.analyst import Analyst
from tests.console.conftest import Site, Visit
from tests.console.test_matching import QUEUED, downloaded, pair, rows_of, table, tile
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

TEXTS = [*sentences(220), *(text.upper() for text in sentences(40))]
SLOW = {"offline": False, "latency": 250, "downloadThroughput": 100_000, "uploadThroughput": 20_000}  # ms, bytes/s
LOST = re.compile(r"/(matches|labels|result)(\?.*)?$")  # addresses whose answers do not come before the tab is closed
JUDGED = 3


@dataclass
class File:
    """A file is chosen and sent. `said`: the words of the page while a trouble lasts."""

    trouble: str
    visit: Visit
    serve: Serve
    store: Path
    folder: Path
    server: Server
    job: str = ""
    judged: dict[frozenset[str], int] = field(default_factory=dict)  # texts -> label

    said = {"killed": "The search for matches was not started: no answer from", "slow": "Sending…"}  # noqa: RUF012

    @property
    def site(self) -> Site:
        return Site(self.server, self.store)

    def restart(self) -> None:
        self.server = self.serve(model_store=self.store, encoder="tiny", local_worker=False, port=self.server.port)

    def open(self) -> Analyst:
        analyst = self.visit(f"#/matches/{self.job}/similarity/0.5" if self.job else "#/", self.server)
        analyst.expected.append("net::ERR_")
        return analyst

    def begin(self) -> Analyst:
        analyst = self.open()
        analyst.chooses_file("tickets.csv", table(TEXTS))
        analyst.understood()
        return analyst

    def another_tab(self) -> Analyst:
        return self.begin()

    def act(self, analyst: Analyst) -> None:
        analyst.presses("Find matches")

    def sees_trouble(self, analyst: Analyst) -> None:
        if words := self.said.get(self.trouble):
            analyst.sees(words)

    def resume(self, analyst: Analyst) -> None:
        analyst.presses("Try again")

    def reopen(self, analyst: Analyst) -> None:
        analyst.go("#/")
        analyst.page.locator("section.mine").get_by_role("link").first.click()

    def ends(self, analyst: Analyst) -> None:
        analyst.sees(QUEUED)
        assert analyst.heading() == "Matches in tickets.csv"
        every = self.site.get("/matches")["matches"]
        assert [one["rows"] for one in every] == [[len(TEXTS)]] * (2 if self.trouble == "two tabs" else 1)


class Pairs(File):
    """The match is followed until its pairs are there."""

    said = {"killed": "It goes on, or begins again when the server is back"}  # noqa: RUF012

    def begin(self) -> Analyst:
        self.job = self.site.post("/matches", a=TEXTS)["job"]
        analyst = self.open()
        analyst.sees(QUEUED)
        return analyst

    def another_tab(self) -> Analyst:
        return self.open()

    def act(self, analyst: Analyst) -> None:
        if self.trouble != "killed":
            self.site.work()

    def resume(self, analyst: Analyst) -> None:
        self.site.work()

    def reopen(self, analyst: Analyst) -> None:
        analyst.go(f"#/matches/{self.job}/similarity/0.5")

    def ends(self, analyst: Analyst) -> None:
        passing = self.site.get(f"/matches/{self.job}?similarity=0.5")["answer"]["passing"]
        assert tile(analyst).startswith(f"{passing:,} pairs")
        assert "How many of these pairs mean the same is unknown." in tile(analyst)


class Judging(Pairs):
    """Pairs are judged by keys; of those that are judged in two tabs, the first one first the same, then different."""

    said = {  # noqa: RUF012
        "killed": f"{JUDGED} judgements not sent yet; this browser holds them",
        "slow": f"{JUDGED} of about 50",
        "two tabs": "1 pair that you judged was judged otherwise since",
    }

    def begin(self) -> Analyst:
        self.job = self.site.post("/matches", a=TEXTS)["job"]
        self.site.work()
        analyst = self.open()
        tile(analyst)
        pair(analyst)
        return analyst

    def act(self, analyst: Analyst) -> None:
        for number in range(JUDGED):
            texts = frozenset(pair(analyst))
            analyst.page.locator(".judging .pair").scroll_into_view_if_needed()
            label = int(number == 2 or (number == 0 and texts not in self.judged))
            analyst.page.keyboard.press(str(label))
            self.judged[texts] = label

    def labels(self) -> dict[frozenset[str], int]:
        lines = self.server.client.get(f"/matches/{self.job}/result?form=judged").raise_for_status().text.splitlines()
        return {frozenset((row["a"], row["b"])): row["label"] for row in map(json.loads, lines)}

    def sees_trouble(self, analyst: Analyst) -> None:
        if self.trouble == "two tabs":
            wait_until(lambda: self.labels() == self.judged)
            analyst.page.evaluate("window.dispatchEvent(new Event('focus'))")  # the tab is looked at again
        super().sees_trouble(analyst)

    def resume(self, analyst: Analyst) -> None:
        """They are sent again without help."""

    def ends(self, analyst: Analyst) -> None:
        wait_until(lambda: self.labels() == self.judged)
        tile(analyst)
        analyst.sees(f"{len(self.judged)} of about 50")
        analyst.page.locator(".verdict", has_text="not sent yet").wait_for(state="hidden")
        wait_until(lambda: analyst.page.evaluate("Object.keys(localStorage).filter((one) => /judged/.test(one))") == [])


class Download(Judging):
    """The pairs that pass are downloaded; of two tabs, the other one has just judged the most alike pair."""

    said = {"killed": "Nothing was downloaded: no answer from", "slow": "Fetching…"}  # noqa: RUF012

    def act(self, analyst: Analyst) -> None:
        if self.trouble == "two tabs":
            self.site.post(f"/matches/{self.job}/labels", labels=[{"pair": 0, "label": 0}])
        else:
            analyst.presses(re.compile("^Download$"))

    def sees_trouble(self, analyst: Analyst) -> None:
        if self.trouble != "two tabs":
            super().sees_trouble(analyst)

    def resume(self, analyst: Analyst) -> None:
        with analyst.page.expect_download():
            analyst.presses("Try again")

    def ends(self, analyst: Analyst) -> None:
        path = downloaded(analyst, "Download", self.folder)
        answer = self.site.get(f"/matches/{self.job}?similarity=0.5")["answer"]
        assert len(rows_of(path)) == answer["passing"]
        wait_until(lambda: tile(analyst).startswith(f"{answer['passing']:,} pairs"))
        assert answer["left_out"] == (self.trouble == "two tabs")
        assert ("1 above the line is left out because you judged it different." in analyst.text("main")) == bool(
            answer["left_out"]
        )


@pytest.mark.parametrize("trouble", ["killed", "closed", "two tabs", "slow"])
@pytest.mark.parametrize("step", [File, Pairs, Judging, Download])
def test_a_trouble_in_a_step_loses_nothing_and_nothing_untrue_is_said(
    visit: Visit, serve: Serve, store: Path, tmp_path: Path, step: type[File], trouble: str
) -> None:
    server = serve(model_store=store, encoder="tiny", local_worker=False)
    desk = step(trouble, visit, serve, store, tmp_path, server)
    analyst = desk.begin()
    if trouble == "killed":
        desk.server.kill()
        desk.act(analyst)
        desk.sees_trouble(analyst)
        desk.restart()
        desk.resume(analyst)
    elif trouble == "closed":
        # A post of files arrives, and its answer is lost; judgements do not arrive, and no download ends.
        analyst.page.route(LOST, lambda route: step in (File, Pairs) and route.fetch())
        desk.act(analyst)
        if step is File:
            page, site = analyst.page, desk.site
            wait_until(lambda: page.wait_for_timeout(20) or site.get("/matches")["matches"])
        context = analyst.page.context
        analyst.page.close()
        analyst = Analyst.at(context, desk.server.url)
        desk.reopen(analyst)
    elif trouble == "two tabs":
        other = desk.another_tab()
        desk.act(other)
        desk.act(analyst)
        desk.sees_trouble(other)
    else:
        slow = analyst.page.context.new_cdp_session(analyst.page)
        slow.send("Network.enable")
        slow.send("Network.emulateNetworkConditions", SLOW)
        desk.act(analyst)
        desk.sees_trouble(analyst)
    desk.ends(analyst)
