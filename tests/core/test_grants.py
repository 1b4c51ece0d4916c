"""What a line of the keys file grants, and what is no such line."""

from datetime import date

import pytest

from isosim.access.grants import ANYBODY, NOBODY, Rate, parse_grant
from isosim.errors import Forbidden, Unauthorized


def test_a_line_grants_what_it_says_and_the_rest_of_it_is_a_name() -> None:
    words = ["read,calibrate", "domains=reuters,sts-*", "rate=100/s", "until=2027-01-31", "the", "search", "team"]
    grant = parse_grant("id", words)
    assert grant.scopes == {"read", "calibrate"}
    assert (grant.rate, grant.until, grant.name) == (Rate(100, 1), date(2027, 1, 31), "the search team")
    assert [grant.may_use(name) for name in ("reuters", "sts-b", "reuters2", "sts", "default")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    bare = parse_grant("id", ["read", "domains=*"])
    assert bare.may_use("anything")
    assert bare.rate is None and bare.until is None


@pytest.mark.parametrize(("given", "rate"), [("100/s", 100), ("6000/m", 100), ("360000/h", 100)])
def test_a_rate_has_its_period(given: str, rate: float) -> None:
    found = parse_grant("id", ["read", "domains=*", f"rate={given}"]).rate
    assert found is not None
    assert found.per_second == rate


@pytest.mark.parametrize(
    "words",
    [
        [], [""], ["write"], ["read,"], ["read,write"], ["READ"],
        ["read", "domain=reuters"],  # a misspelt option would leave all domains open
        ["read"], ["read", "name"],  # a line that was cut off would leave all domains open
        ["read", "domains="], ["read", "domains=Reuters"], ["read", "domains=a,,b"], ["read", "domains=a/b"],
        ["read", "domains=[a]"], ["read", "domains=a", "domains=b"],
        *(
            ["read", "domains=*", f"rate={rate}"] for rate in ("0/s", "10", "-1/s", "1/d", "1e9/s")
        ),
        *(
            ["read", "domains=*", f"until={day}"] for day in ("2027", "2027-02-30", "20270131", "tomorrow")
        ),
        ["read", "domains=*", "name", "of=team"], ["read", "domains=*", "0" * 64],
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_and_not_passed_over(words: list[str]) -> None:
    with pytest.raises(ValueError):
        parse_grant("id", words)


def test_no_key_in_a_wrong_place_is_repeated() -> None:
    with pytest.raises(ValueError) as refused:
        parse_grant("id", ["read", "isk_secret=1"])
    assert "isk_secret" not in str(refused.value)


def test_nobody_gets_in_before_its_key_was_checked() -> None:
    with pytest.raises(Unauthorized):
        NOBODY.check_domain("default")
    with pytest.raises(Forbidden):
        NOBODY.check_scope("read")
    ANYBODY.check_scope("admin")
    ANYBODY.check_domain("default")


def test_a_domain_that_is_not_granted_is_forbidden_in_the_same_words_whether_it_exists() -> None:
    grant = parse_grant("id", ["read", "domains=a"])
    with pytest.raises(Forbidden, match="may not use the domain 'b'"):
        grant.check_domain("b")
