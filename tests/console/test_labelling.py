"""Labels of a domain: judged pairs of a match on its scale, and a file of labelled pairs."""

import re

import pytest

from tests.console.conftest import Site, Visit, labelled
from tests.console.test_matching import judge
from tests.text import sentences
from tests.workbooks import workbook

OWN = "File of labelled pairs"


@pytest.fixture
def domain(site: Site, request: pytest.FixtureRequest) -> str:
    """A domain of the test's own, with one version."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    site.copies(name)
    return str(name)


def test_judged_pairs_of_a_match_become_the_labels_of_its_domain(visit: Visit, site: Site, domain: str) -> None:
    analyst = visit("#/domains")
    analyst.presses(f"Versions of {domain}")
    analyst.presses(f"Add labels to {domain}", "link")
    analyst.page.get_by_role("main").get_by_role("link", name="Find matches").click()
    analyst.fills("Or paste", "\n".join([*sentences(220), *(text.upper() for text in sentences(60))]))
    analyst.sees(f"The similarities are those of {domain}.")
    analyst.presses("Find matches")
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees("Do these two mean the same?")
    judge(analyst, 40)
    analyst.sees(re.compile("^40 of about"))
    analyst.page.locator("button:not([disabled])", has_text=f"Use these labels for {domain}").click()
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees(f"Version 2 of {domain}")
    labels = site.get(f"/domains/{domain}/versions/2")["report"]["labels"]
    assert labels["effective_pairs"] < labels["pairs"] == 40  # each stands for the pairs that are as alike


def test_labels_of_a_file_are_sent_without_judging(visit: Visit, site: Site, domain: str) -> None:
    analyst = visit(f"#/report/{domain}/1")
    analyst.presses("Add labels", "link")
    analyst.presses("Send the labels")
    analyst.sees("Choose a file first.")
    for name, content, words in (
        ("report.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "Copy the text out of a PDF"),
        ("labels.csv", b"a,b,label\nOne.,Two.,7\n", "neither 0 nor 1: 7 in line 2"),
        ("labels.tsv", b"One.\tTwo.\nThree.\tFour.\n", "found 2 columns"),
    ):
        analyst.chooses_file(name, content, OWN)
        analyst.presses("Send the labels")
        analyst.sees(words)
        assert analyst.field(OWN).get_attribute("aria-invalid") == "true"
    rows = [[a, b, n % 2] for n, (a, b, _) in enumerate(labelled(40))]
    analyst.chooses_file("own.xlsx", workbook([["a", "b", "label"], *rows]), OWN)
    analyst.presses("Send the labels")
    analyst.sees("Waiting for a worker")
    site.work()
    analyst.sees(f"Version 2 of {domain}")
    assert site.get(f"/domains/{domain}/versions/2")["report"]["labels"]["pairs"] == 40
