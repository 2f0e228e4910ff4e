"""A public name does not go without a warning that says what to use."""

from __future__ import annotations

import pytest

from veil.foundation.deprecation import deprecated


@deprecated(since="0.3", instead="newer", removed_in="0.5")
def older(value: int) -> int:
    """Add one."""
    return value + 1


def test_a_deprecated_function_works_and_warns_at_the_line_that_calls_it() -> None:
    with pytest.warns(FutureWarning, match=r"older is deprecated since 0\.3 .* removed in 0\.5: use newer") as seen:
        assert older(1) == 2
    assert seen[0].filename == __file__


def test_the_docstring_says_so_too() -> None:
    assert older.__doc__ is not None
    assert older.__doc__.startswith("Add one.")
    assert "use newer instead" in older.__doc__


@pytest.mark.parametrize(("since", "removed_in"), [("0.3", "0.4"), ("0.3", "0.3"), ("0.9", "0.10")])
def test_a_name_cannot_be_removed_before_two_minor_versions_have_passed(since: str, removed_in: str) -> None:
    with pytest.raises(ValueError, match="two minor versions"):
        deprecated(since=since, instead="newer", removed_in=removed_in)


@pytest.mark.parametrize(("since", "removed_in"), [("0.9", "0.11"), ("0.9", "1.0"), ("1.2.3", "1.4.0")])
def test_versions_are_compared_as_numbers(since: str, removed_in: str) -> None:
    assert deprecated(since=since, instead="newer", removed_in=removed_in)(lambda: 3) is not None
