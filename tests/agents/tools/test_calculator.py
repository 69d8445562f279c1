"""The calculator computes exactly, and no expression can make it run for long."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents.tools.calculator import calculate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("17*23", "391"), (" (12.5 + 3) * 4 ", "62"), ("0.1+0.2", "0.3"), ("1/3", "0.333333333333"), ("7//2", "3"),
        ("-7 % 3", "2"), ("2^10", "1024"), ("2**-1", "0.5"), ("9**0.5", "3"), ("6×7", "42"), ("8÷2", "4"), ("+5", "5"),
        ("1e3", "1000"), ("10**30", "1" + "0" * 30),
    ],
)  # fmt: skip
def test_results(expression: str, result: str) -> None:
    assert calculate(expression) == result


@given(st.integers(-999, 999), st.integers(-999, 999), st.integers(1, 999), st.sampled_from("+-*/"))
def test_a_sum_of_quotients_is_exact(a: int, b: int, c: int, sign: str) -> None:
    expected = {"+": a + Fraction(b, c), "-": a - Fraction(b, c), "*": a * Fraction(b, c), "/": None}[sign]
    if expected is None:
        return
    assert float(calculate(f"{a} {sign} ({b}) / {c}".replace("*", "* 1 *"))) == pytest.approx(
        float(expected), rel=1e-11
    )


@pytest.mark.parametrize(
    "expression",
    ["", "a+1", "__import__('os')", "1+", "(1", "1/0", "5%0", "[1]*3", "'a'*3", "True+1", "1 if 1 else 2", "(-1)**0.5",
     "9**9**9", "9**999999999", "2**-99999", "10**400*10**400*10**400", "(" * 5000 + ")" * 5000, "0**-1"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_an_error_at_once(expression: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(ValueError):
        calculate(expression)
    assert time.perf_counter() - begun < 0.5
