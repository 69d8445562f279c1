"""Which modules of hone read a key. They are found in hone's own source, by following typed names from section to
section (`actor: ActorConfig`, `actor = config.actor_rollout_ref.actor`), and to what functions return, so the answer is
never older than the code.

A name without a type is not followed: code that reads a configuration says which section it holds.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import hone

from .presets import DEFAULT_PRESET, PRESETS
from .schema.base import Node
from .schema.walk import fields_of, section_of

Sections = frozenset[type[Node]]  # the classes that an expression may be; empty when it is no section
Read = tuple[type[Node], str]  # a class and one of its fields
NOWHERE: Sections = frozenset()
PACKAGE = Path(hone.__file__).parent


def readers(command: str, key: str) -> list[str]:
    """Modules outside hone.config that read the key, as "hone.workers.actor"; none if a section on the way is not."""
    section: type[Node] = PRESETS[DEFAULT_PRESET[command]].schema
    found: set[str] = set()
    for part in key.split("."):
        name = next((name for name, field in section.model_fields.items() if part in (name, field.alias)), part)
        found = _modules_that_read(section, name)
        child = section_of(fields_of(section)[part]) if found and part in fields_of(section) else None
        if child is None:
            break
        section = child
    return sorted(found)


def _modules_that_read(section: type[Node], name: str) -> set[str]:
    """Code that takes a base class reads the field of every class below it."""
    found = (
        modules for (taken, field), modules in _all_reads().items() if field == name and issubclass(section, taken)
    )
    return set().union(*found)


@cache
def _all_reads() -> dict[Read, set[str]]:
    found: dict[Read, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE.parent).with_suffix("")
        text = file.read_text(encoding="utf-8")
        if path.parts[1] != "config" and "hone.config" in text:
            for read in reads_in(ast.parse(text)):
                found[read].add(".".join(path.parts).removesuffix(".__init__"))
    return found


@cache
def _returned() -> dict[str, Sections]:
    """What the package's functions return, by their names, where it is a section."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in PACKAGE.rglob("*.py"))
    functions = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) and node.returns)
    found = ((function.name, _annotated(function.returns)) for function in functions if function.returns)
    return {name: sections for name, sections in found if sections}


@cache
def _classes() -> dict[str, type[Node]]:
    """Every section class by its name, the classes that they build on included."""
    roots = [PRESETS[preset].schema for preset in DEFAULT_PRESET.values()]
    return {kin.__name__: kin for section in _below(roots) for kin in section.__mro__ if issubclass(kin, Node)}


def _below(sections: Iterable[type[Node]]) -> Iterator[type[Node]]:
    for section in sections:
        yield section
        yield from _below(child for field in section.model_fields.values() if (child := section_of(field)))


def reads_in(tree: ast.AST) -> set[Read]:
    """The fields that some code reads, those included that are read by the properties it reads."""
    finder = _Finder()
    finder.visit(tree)
    return finder.reads


@cache
def _read_by_property(section: type[Node], name: str) -> frozenset[Read]:
    found = inspect.getattr_static(section, name, None)
    if not isinstance(found, property) or found.fget is None:
        return frozenset()
    finder = _Finder({"self": frozenset({section})})
    finder.visit(ast.parse(textwrap.dedent(inspect.getsource(found.fget))))
    return frozenset(finder.reads)


class _Finder(ast.NodeVisitor):
    """Walks code in its order. `names` are the sections that local names hold, `own` those of `self`'s attributes."""

    def __init__(self, names: dict[str, Sections] | None = None) -> None:
        self.reads: set[Read] = set()
        self.names = dict(names or {})
        self.own: dict[str, Sections] = {}
        self.texts: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, fields = self.own, [part for part in node.body if isinstance(part, ast.AnnAssign)]
        self.own = {part.target.id: _annotated(part.annotation) for part in fields if isinstance(part.target, ast.Name)}
        for _ in range(2):  # a method may stand above the one that fills an attribute
            self.generic_visit(node)
        self.own = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names, texts = self.names, self.texts
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        typed = {a.arg: _annotated(a.annotation) for a in arguments if a.annotation is not None}
        self.names = {**names, **typed}
        self.texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        self.generic_visit(node)
        self.names, self.texts = names, texts

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast calls

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        self._name(node.target, _annotated(node.annotation))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        self._read(self._sections(node.value), node.attr)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
            named = node.args[1]
            fields = {named.value} if isinstance(named, ast.Constant) else self.texts
            for name in fields:
                self._read(self._sections(node.args[0]), str(name))

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for each, its in zip(target.elts, values, strict=False):
                self._bind(each, its)
        else:
            self._name(target, self._sections(value))

    def _name(self, target: ast.expr, sections: Sections) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = sections
        elif isinstance(target, ast.Attribute) and sections:  # self.config = config
            self.own[target.attr] = sections

    def _read(self, sections: Sections, name: str) -> None:
        for section in sections:
            if any(name in kin.model_fields for kin in (section, *_subclasses(section))):
                self.reads.add((section, name))
            self.reads |= _read_by_property(section, name)

    def _sections(self, node: ast.expr) -> Sections:
        if isinstance(node, ast.Name):
            return self.names.get(node.id, NOWHERE)
        if isinstance(node, ast.IfExp):
            return self._sections(node.body) | self._sections(node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return _returned().get(node.func.id, NOWHERE)
        if not isinstance(node, ast.Attribute):
            return NOWHERE
        if isinstance(node.value, ast.Name) and node.value.id == "self" and "self" not in self.names:
            return self.own.get(node.attr, NOWHERE)
        fields = (s.model_fields.get(node.attr) for s in self._sections(node.value))
        return frozenset(child for field in fields if field is not None and (child := section_of(field)))


def _subclasses(section: type[Node]) -> set[type[Node]]:
    return {kin for kin in _classes().values() if issubclass(kin, section)}


def _annotated(annotation: ast.expr) -> Sections:
    names = {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)}
    return frozenset(_classes()[name] for name in names & _classes().keys())
