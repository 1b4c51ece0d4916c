"""What the page computes itself: distributions, and shares in words."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.console.conftest import Site

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run(browser: Any, site: Site) -> Iterator[Run]:
    """Calls a script in the page: the names of a module's functions, the script's body, and its argument `given`."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site.server.url}/console")

    def call(module: str, names: str, body: str, given: Any = None) -> Any:
        script = f"async (given) => {{ const {{ {names} }} = await import('/console/{module}.js'); {body} }}"
        return page.evaluate(script, given)

    yield call
    context.close()


def test_shares_are_written_no_finer_than_the_data_support_and_without_exponents(run: Run) -> None:
    body = """return [
        percentile(1 - 1e-9, true, 11175), percentile(1 - 5e-4, true, 11175), percentile(0.975, false, 11175),
        percentile(1 - 1e-9, true, 2000000), percentile(null, null, null), roughly(0.264), roughly(0.9999),
        roughly(0.001), ...[1e-9, 0.5, 0.0123, 1].map(percent)];"""
    assert run("format", "percentile, roughly, percent", body) == [
        "above 99.991 %", "above 99.91 %", "97.5\xa0%", "above 99.99995 %", "–", "26 %", "above 99 %", "below 1 %",
        "0.0000001\xa0%", "50\xa0%", "1.2\xa0%", "100\xa0%",
    ]  # fmt: skip
    rates = [1e-9, 4e-7, 3e-6, 1e-5, 1 / 1234, 0.4]
    said = run("format", "oneIn", "return given.map((rate) => oneIn(1 - rate, 2_000_000));", rates)
    assert said == [
        *["fewer than 1 in 2,000,000"] * 2, "fewer than 1 in 200,000", "1 in 100,000", "1 in 1,200",
        "1 in 2.5",
    ]  # fmt: skip


def test_similarities_have_two_decimals_and_the_services_words_name_no_route(run: Run) -> None:
    given = [0.3099, 0.5, 0.9971, 1, -0.001, None]
    assert run("format", "score", "return given.map((one) => score(one));", given) == [
        "0.31", "0.50", "0.9971", "1.00", "0.00", "–",
    ]  # fmt: skip
    words = [
        'domain \'d\' was given no labels; give it some: POST /domains/d/labels with {"labels": [["a", "b", 1], …]}',
        "no threshold 'x'; GET /domains/d/thresholds lists those that are saved",
        "version 2 became champion after the labels were posted; promote a version of this encoder",
    ]
    assert run("format", "plainly", "return given.map(plainly);", words) == [
        "domain 'd' was given no labels; give it some",
        "no threshold 'x'",
        "version 2 was put in use after the labels were posted; put a version of this encoder in use",
    ]
