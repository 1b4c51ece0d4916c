"""What `make test` runs, what `make test-all` adds, and what happens where something is missing."""

import itertools
import re
from pathlib import Path

import pytest

from tests.conftest import FIRST, GROUP_OF_FIXTURE, GROUPS
from tests.processes import skip_without

ROOT = Path(__file__).parents[1]
BY_DECORATOR = {"fuzzing"}


def test_every_group_is_left_out_of_the_quick_tests_and_described(pytestconfig: pytest.Config) -> None:
    (expression,) = re.findall(r'-m "not \((.+)\)"', (ROOT / "Makefile").read_text())
    given = {*GROUPS.values(), *GROUP_OF_FIXTURE.values(), *BY_DECORATOR}
    assert set(expression.split(" or ")) == given
    assert given <= {line.partition(":")[0] for line in pytestconfig.getini("markers")}


def test_every_row_names_a_place_that_exists() -> None:
    assert [place for place in (*GROUPS, *itertools.chain(*FIRST)) if not (ROOT / place).exists()] == []


def test_ci_runs_everything_and_the_readme_names_both_commands() -> None:
    assert "export ISOSIM_REQUIRE_ALL=1\nexec make test-all\n" in (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "`make test`:" in readme
    assert "`make test-all`" in readme


def test_what_is_missing_skips_a_test_or_fails_it_where_everything_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOSIM_REQUIRE_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no engine here"):
        skip_without("no engine here")
    monkeypatch.setenv("ISOSIM_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="no engine here"):
        skip_without("no engine here")
