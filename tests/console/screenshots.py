"""The pictures of docs/console.md: `python -m tests.console.screenshots DATA`, the folder with the measuring data.

Needs the default encoder in model_store. Takes some minutes: it calibrates real text.
"""

import re
import shutil
import sys
import tempfile
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from isosim.encoders.store import EncoderStore
from isosim.export.model_store import install_default
from tests.console.analyst import Analyst
from tests.processes import Process, Server, serve_with

SENTENCES = 1500
COLOURS = 256  # of a picture's palette; keeps a file below 200 KB
# Of the console's sample: things, and words that tell what is asked; the first that occur.
THINGS = ["app", "shop", "printer", "laptop", "headset", "router", "coffee", "watch"]
WORDS = ["update", "reset|was delivered", "manual|guide", "return|give", "delivery|be delivered",
         "wireless|Wi-Fi", "slow", "language", "clean", "sounds|mute", "code", "repairs|fix"]  # fmt: skip
FOLDER = Path(__file__).parents[2] / "docs" / "console"


def prepare(server: Server, data: Path) -> None:
    """Makes domains of news, in three versions, and of film reviews with labels of question pairs."""
    news, films = (
        (data / "text" / f"{name}.txt").read_text().splitlines() for name in ("reuters-news", "imdb-reviews")
    )
    lines = [line.split("\t") for line in (data / "pairs" / "quora.tsv").read_text().splitlines()[:1000]]
    server.calibrate("reuters", news[:SENTENCES])
    server.calibrate("reuters", news[SENTENCES : 2 * SENTENCES], method="soft", promote="always")
    server.calibrate("reuters", news[-300:])  # too little to be better than the champion
    server.calibrate("films", films[:SENTENCES], labels=[(a, b, int(float(label))) for label, a, b in lines])
    for start in (0, 200, 400):  # for the drift
        pairs = [[a, b] for a, b in zip(news[start : start + 200], news[start + 1 : start + 201], strict=True)]
        server.client.post("/similarity", json={"pairs": pairs, "domain": "reuters"})


def shoot(analyst: Analyst, view: str) -> None:
    analyst.page.wait_for_timeout(500)  # until figures are drawn
    picture = Image.open(BytesIO(analyst.page.screenshot(full_page=True))).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(FOLDER / f"{view}-light.png", optimize=True)


def shoot_all(analyst: Analyst) -> None:
    analyst.go("#/domains")
    shoot(analyst, "domains")
    analyst.go("#/report/reuters/2")
    analyst.sees("The line stands at a similarity of")
    shoot(analyst, "report")
    analyst.go("#/calibrate/reuters")
    news = [f"Sentence number {n} of the news." for n in range(2400)]
    analyst.chooses_file("news.txt", "\n".join([*news, "x" * 10_001]).encode())
    analyst.understood()
    shoot(analyst, "calibrate")
    analyst.presses(re.compile("^Open calibration of reuters"), "link")
    analyst.sees("Open the report")
    shoot(analyst, "job")
    analyst.go("#/compare/reuters/default")
    analyst.presses("Fill in an example")
    analyst.page.get_by_role("table", name="Scores").wait_for()
    shoot(analyst, "compare")
    shoot_matches(analyst)


def meaning(question: str) -> tuple[str, str]:
    """What a question of the sample asks, and of which thing."""
    about = next((words for words in WORDS if any(word in question for word in words.split("|"))), question)
    return about, next(thing for thing in THINGS if thing in question)


def shoot_matches(analyst: Analyst) -> None:
    analyst.go("#/")
    analyst.presses("Try it with a sample")
    analyst.understood()
    analyst.presses("Find matches")
    for _ in range(45):
        analyst.page.locator("button:not([disabled])", has_text="Different").wait_for()
        meanings = {meaning(text) for text in analyst.page.locator(".pair blockquote").all_inner_texts()}
        analyst.page.locator(".judging .pair").scroll_into_view_if_needed()
        analyst.page.keyboard.press(str(int(len(meanings) == 1)))
        analyst.page.wait_for_timeout(200)  # as no person judges faster
    analyst.sees(re.compile("are false"))
    analyst.page.wait_for_timeout(4000)  # until the last judgements are read
    analyst.page.evaluate(
        "document.querySelectorAll('table.found tbody tr:nth-child(n+9)').forEach((row) => row.remove())"
    )
    shoot(analyst, "matches")


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: list[Process] = []
        stack.callback(lambda: [process.kill() for process in running])
        shutil.copytree("model_store/encoders", folder / "store" / "encoders")
        install_default(folder / "store", EncoderStore.at(folder / "store").find("minilm"), print)
        server = serve_with(folder, running, model_store=folder / "store")
        prepare(server, Path(sys.argv[1]))
        chromium = stack.enter_context(sync_playwright()).chromium
        browser = chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        analyst = Analyst.at(browser.new_context(viewport={"width": 1100, "height": 760}), server.url)
        shoot_all(analyst)
        print(*analyst.complaints(), sep="\n")


if __name__ == "__main__":
    main()
