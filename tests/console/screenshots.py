"""Pictures of every view, light and dark, for docs/console: `python -m tests.console.screenshots --data DATA`.

Needs the default encoder in model_store. Takes some minutes: it calibrates real text.
"""

import argparse
import re
import shutil
import tempfile
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from isosim.encoders.store import EncoderStore
from isosim.export.model_store import install_default
from tests.console.analyst import Analyst
from tests.processes import Process, Server, serve_with

SENTENCES = 1500
SAMPLE = [f"Shares of company {n} fell after the report." for n in range(2400)]
COLOURS = 256  # of a picture's palette; keeps a file below 200 KB
FOLDER = Path(__file__).parents[2] / "docs" / "console"


def prepare(server: Server, data: Path) -> None:
    """Domains of real text: news in two versions, film reviews, and questions with labels."""
    news = (data / "text" / "reuters-news.txt").read_text().splitlines()
    films = (data / "text" / "imdb-reviews.txt").read_text().splitlines()
    server.calibrate("reuters", news[:SENTENCES])
    server.calibrate("reuters", news[SENTENCES : 2 * SENTENCES], method="soft", promote="always")
    server.calibrate("reuters", news[-300:])  # too little to be better than the champion
    server.calibrate("films", films[:SENTENCES], labels=labelled(data))
    for start in (0, 200, 400):
        pairs = [[a, b] for a, b in zip(news[start : start + 200], news[start + 1 : start + 201], strict=True)]
        server.client.post("/similarity", json={"pairs": pairs, "domain": "reuters"})


def labelled(data: Path) -> list[tuple[str, str, int]]:
    """Question pairs, labelled by people."""
    lines = (data / "pairs" / "quora.tsv").read_text().splitlines()[:1000]
    cells = [line.split("\t") for line in lines]
    return [(a, b, int(float(label))) for label, a, b in cells]


def views(analyst: Analyst, texts: list[str]) -> list[tuple[str, Any]]:
    def report(place: str) -> None:
        analyst.go(place)
        analyst.sees("The line stands at a similarity of", 60)
        analyst.page.wait_for_timeout(500)

    def calibrate() -> None:
        analyst.go("#/calibrate")
        analyst.fills("Domain", "reuters")
        analyst.drops(
            "news.txt", "\n".join([f"Sentence number {n} of the news." for n in range(2400)] + ["x" * 10_001])
        )
        analyst.understood()

    def compare() -> None:
        analyst.go("#/compare/reuters/default")
        analyst.page.get_by_label("One against many").check()
        analyst.presses("Fill in an example")
        analyst.sees("How to read this")

    def label() -> None:
        analyst.go("#/label/films")
        analyst.fills("Or paste", "\n".join(texts))
        analyst.understood()
        analyst.presses("Draw pairs")
        analyst.sees("2. Do these two mean the same?", 120)
        for key in "0011010100101101001011":
            analyst.page.keyboard.press(key)
        analyst.sees("From a similarity of")
        analyst.page.wait_for_timeout(500)

    def job() -> None:
        jobs = analyst.server.client.get("/calibrate").json()["jobs"]
        newest = next(job for job in jobs if job["domain"] == "reuters")
        analyst.go(f"#/job/{newest['job']}")

    def confirm() -> None:
        analyst.go("#/domains")
        analyst.presses("Versions of reuters")
        analyst.presses(re.compile("Roll back to version"))
        analyst.page.get_by_role("dialog").wait_for()

    return [
        ("domains", lambda: analyst.go("#/domains")),
        ("report", lambda: report("#/report/reuters/2")),
        ("report-labels", lambda: report("#/report/films/1")),
        ("calibrate", calibrate),
        ("label", label),
        ("job", job),
        ("compare", compare),
        ("confirm", confirm),
    ]


def shoot(analyst: Analyst, place: Path) -> None:
    asking = analyst.page.get_by_role("dialog").count() > 0  # its backdrop covers the window, not the whole page
    picture = Image.open(BytesIO(analyst.page.screenshot(full_page=not asking)))
    picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(place, optimize=True)
    print(f"{place.name}: {place.stat().st_size // 1024} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the measuring data")
    parser.add_argument("--url", help="a server that has the domains already, instead of one made for this")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    films = (arguments.data / "text" / "imdb-reviews.txt").read_text().splitlines()[-300:]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: list[Process] = []
        stack.callback(lambda: [process.kill() for process in running])
        if arguments.url:
            import httpx

            server = Server(None, folder, arguments.url, httpx.Client(base_url=arguments.url, timeout=60))  # type: ignore[arg-type]
        else:
            shutil.copytree("model_store/encoders", folder / "store" / "encoders")
            install_default(folder / "store", EncoderStore.at(folder / "store").find("minilm"), print)
            server = serve_with(folder, running, model_store=folder / "store")
            prepare(server, arguments.data)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport={"width": 1100, "height": 760})
            analyst = Analyst.at(context, server)
            for name, open_view in views(analyst, films):
                open_view()
                shoot(analyst, FOLDER / f"{name}-{scheme}.png")
            print(*analyst.complaints(), sep="\n")
        browser.close()


if __name__ == "__main__":
    main()
