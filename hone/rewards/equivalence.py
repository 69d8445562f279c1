"""Whether two LaTeX answers mean the same: as math-verify reads them, with checks around its mistakes, or as strings.

math-verify takes 1/2004! for 1/2006!, 11_2 for 11_3, and does not see sqrt(1/n) = 1/sqrt(n): two expressions in
the same unknowns are therefore compared by their values.
"""

import re
import threading
from typing import Any

LONGEST_ANSWER = 300  # characters; beyond it only equal strings count
READING_SECONDS = 5
TOLERANCE = 1e-40  # relative
DIGITS = 50
DECIMAL_TOLERANCE = 1e-5  # where an answer is written with decimals: 0.333333 stands for 1/3
# Irregular values for the unknowns, so that different expressions do not meet there by chance.
POSITIVE_POINTS = ("1.3719", "2.8343", "0.4127")
NEGATIVE_POINTS = ("-1.3719", "-0.4127")

SPACING = re.compile(r"\\[,;:! ]|\\q?quad\b|\\left(?![a-z])|\\right(?![a-z])|[\s$~]")
TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm|operatorname)\{([^{}]*)\}")
SHORT_FRACTION = re.compile(r"\\frac(?:(\d)(\d)|\{([^{}]*)\}(\d)|(\d)\{([^{}]*)\})")
BASE = re.compile(r"_\{?(\d+)\}?$")
# What sympy raises on nonsense that a model may write, such as an inequality between complex numbers.
SYMPY_REFUSALS = (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError, RecursionError)
# A tower or a five-digit exponent or factorial would keep sympy busy for hours, and no alarm interrupts it.
HEAVY = re.compile(r"(\^|\*\*)\s*[{(]?-?\d{5,}|(\^|\*\*)[^+*/=,]*(\^|\*\*)|\d{5,}\s*\)?!|!\s*\)?!|\^\s*\{?[^{}]*!")


def equivalent(answer: str, truth: str) -> bool:
    if normalise(answer) == normalise(truth):
        return True
    if max(len(answer), len(truth)) > LONGEST_ANSWER or any(HEAVY.search(text) for text in (answer, truth)):
        return False
    if _different_bases(answer, truth):
        return False
    read_answer, read_truth = _read(answer), _read(truth)
    if not read_answer or not read_truth:
        return False
    try:
        same = same_values(_with_imaginary_unit(read_answer[0]), _with_imaginary_unit(read_truth[0]))
    except SYMPY_REFUSALS:
        same = None
    return _verify(read_answer, read_truth) if same is None else same


def normalise(text: str) -> str:
    """Strip what has no mathematical meaning: spacing, text wrappers, currency and degree signs, forms of \\frac."""
    text = text.strip().rstrip(".").replace(r"\$", "").replace(r"\%", "%")
    text = TEXT.sub(r"\1", re.sub(r"\\[dt]frac", r"\\frac", text))
    text = re.sub(r"\^\s*\{?\\circ\}?", "", SPACING.sub("", text))
    text = SHORT_FRACTION.sub(_full_fraction, text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) if "(" not in text and "{" not in text else text
    return re.sub(r"(?<!\d)\.(?=\d)", "0.", text)


def _full_fraction(match: re.Match[str]) -> str:
    numerator, denominator = (group for group in match.groups() if group is not None)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _different_bases(answer: str, truth: str) -> bool:
    bases = [BASE.search(text.strip()) for text in (answer, truth)]
    return all(bases) and len({base[1] for base in bases if base}) > 1


def _seconds() -> int | None:
    """math-verify stops itself by an alarm signal, which only the main thread can take."""
    return READING_SECONDS if threading.current_thread() is threading.main_thread() else None


def _read(text: str) -> list[Any]:
    from math_verify import parse

    return parse(f"${text}$", parsing_timeout=_seconds())  # bare text is read as its first number: "1 - 1/e" as 1


def _with_imaginary_unit(expression: Any) -> Any:
    """math-verify reads i as an unknown; in these answers it is the imaginary unit."""
    import sympy

    if not isinstance(expression, sympy.Basic):  # a text that is no mathematics stays text
        return expression
    return expression.subs({symbol: sympy.I for symbol in expression.free_symbols if str(symbol) == "i"})


def _verify(answer: list[Any], truth: list[Any]) -> bool:
    from math_verify import verify

    return verify(truth, answer, timeout_seconds=_seconds())


def same_values(a: Any, b: Any) -> bool | None:
    """Compare two expressions or two equations by value at a few points; None where values do not decide."""
    import sympy

    if isinstance(a, sympy.Eq) and isinstance(b, sympy.Eq):
        return _same_equations(a.lhs - a.rhs, b.lhs - b.rhs)
    if not _comparable(a, b):
        return None
    if a.doit().is_Rational and b.doit().is_Rational:
        return bool(a.doit() == b.doit())  # 10^50 and 10^50 + 1 differ beyond any number of digits
    tolerance = DECIMAL_TOLERANCE if a.has(sympy.Float) or b.has(sympy.Float) else TOLERANCE
    points = [*POSITIVE_POINTS, *NEGATIVE_POINTS] if a.free_symbols else POSITIVE_POINTS[:1]
    for point in points:
        x, y = _value(a, point), _value(b, point)
        if x is None or y is None:
            return None
        if point in NEGATIVE_POINTS and not (x.is_real and y.is_real):
            continue  # sqrt(1/n) and 1/sqrt(n) differ only where neither is real
        if abs(x - y) > tolerance * max(abs(x), abs(y)):
            return False
    return True


def _same_equations(a: Any, b: Any) -> bool | None:
    """Equations in two or more unknowns are the same if their sides differ by a constant factor."""
    if not _comparable(a, b) or len(a.free_symbols) < 2:
        return None
    values = [(_value(a, point), _value(b, point)) for point in POSITIVE_POINTS]
    if any(x is None or y is None or y == 0 for x, y in values):
        return None
    ratios = [x / y for x, y in values]
    return all(abs(ratio - ratios[0]) <= TOLERANCE * abs(ratios[0]) for ratio in ratios)


def _comparable(a: Any, b: Any) -> bool:
    """Plain expressions in the same unknowns, without anything whose value is costly or undefined."""
    import sympy

    costly = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative, sympy.core.relational.Relational)
    plain = all(isinstance(e, sympy.Expr) and not e.is_Matrix and not e.has(*costly) for e in (a, b))
    return plain and a.free_symbols == b.free_symbols


def _value(expression: Any, point: str) -> Any:
    """The value to DIGITS digits with every unknown set to a number near `point`; None if there is none."""
    import sympy

    base = sympy.Rational(point)
    unknowns = sorted(expression.free_symbols, key=str)
    values = {unknown: base * (1 + sympy.Rational(k * k, 7)) for k, unknown in enumerate(unknowns)}
    value = sympy.N(expression.subs(values), DIGITS)
    return value if value.is_number and value.is_finite else None
