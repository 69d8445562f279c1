"""Tools that a model can call: built-in ones, classes and functions of the user's."""

from hone.agents.tools.calculator import Calculator
from hone.agents.tools.listing import load_tools
from hone.agents.tools.python import Python
from hone.agents.tools.search import Search
from hone.agents.tools.session import ToolLimits, ToolSession
from hone.agents.tools.tool import FunctionTool, Schema, Tool

__all__ = [
    "Calculator",
    "FunctionTool",
    "Python",
    "Schema",
    "Search",
    "Tool",
    "ToolLimits",
    "ToolSession",
    "load_tools",
]
