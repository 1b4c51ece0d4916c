"""The tree of errors, and that the API has an answer for each."""

import re

from isosim import errors
from isosim.api.errors import TABLE, look_up
from isosim.errors import IsosimError, JobCancelled, MethodNotAllowed


def below(error: type[IsosimError]) -> set[type[IsosimError]]:
    return {error}.union(*(below(child) for child in error.__subclasses__()))


EVERY = {error for error in below(IsosimError) if error.__module__ == errors.__name__} - {IsosimError}


def test_every_error_has_a_status_but_the_one_that_is_no_answer() -> None:
    without = {error for error in EVERY if not any(base in TABLE for base in error.__mro__)}
    assert without == {JobCancelled}
    made = (MethodNotAllowed("x", "GET") if error is MethodNotAllowed else error("x") for error in EVERY - without)
    assert all(400 <= look_up(error)[0] < 600 for error in made)


def test_the_table_names_no_status_for_what_is_not_raised() -> None:
    assert TABLE.keys() <= EVERY


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    assert errors.__doc__ is not None
    tree = errors.__doc__.partition("IsosimError\n")[2]
    drawn = re.findall(r"\b[A-Z]\w+", tree)
    assert sorted(drawn) == sorted(error.__name__ for error in EVERY)
