"""Arithmetic, exactly: + - * / // % ** and brackets over integers, decimals and fractions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from hone.agents.tools.tool import Schema, Tool
from hone.errors import UserError

MOST_DIGITS = 1000  # of a result; powers that would have more are refused before they are computed
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class Calculator(Tool):
    schema: Schema | None = {
        "name": "calculator",
        "description": "Computes an arithmetic expression exactly.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "For example (12.5 + 3) * 4."}},
            "required": ["expression"],
        },
    }

    def __init__(self, config: Mapping[str, Any], schema: Schema) -> None:
        super().__init__(config, schema)
        if config:
            raise UserError(f"the calculator takes no config, and finds {', '.join(config)}")

    async def execute(self, state: Any, arguments: dict[str, Any]) -> str:
        return calculate(str(arguments["expression"]))


def calculate(expression: str) -> str:
    """An integer, or a decimal of up to 12 digits. Raises ValueError for what is no arithmetic."""
    try:
        tree = ast.parse(expression.strip().replace("×", "*").replace("÷", "/").replace("^", "**"), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, RecursionError, MemoryError) as problem:
        raise ValueError(f"{expression!r:.80} is no arithmetic expression") from problem
    except ZeroDivisionError as problem:
        raise ValueError("division by zero") from problem
    return str(value.numerator) if value.denominator == 1 else format(float(value), ".12g")


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))  # 0.1 is a tenth
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(_value(node.left), _value(node.right))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        return _bounded(Fraction(BINARY[type(node.op)](_value(node.left), _value(node.right))))
    raise ValueError(f"{ast.unparse(node)!r:.80} is no arithmetic: numbers, + - * / // % ** and brackets are")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator)))
    if abs(exponent) * digits > MOST_DIGITS:
        raise ValueError(f"the result has more than {MOST_DIGITS} digits")
    if exponent.denominator == 1:
        return base**exponent.numerator
    root = float(base) ** float(exponent)
    if isinstance(root, complex):
        raise ValueError("a root of a negative number")
    return Fraction(root)


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > MOST_DIGITS * 3.4:
        raise ValueError(f"the result has more than {MOST_DIGITS} digits")
    return value
