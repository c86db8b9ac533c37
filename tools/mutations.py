"""Small faults to insert into a module: the operators, where they apply, and the changed tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_MASKS = {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr}
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_PAIRS = (
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("floor", "ceil"),
    ("any", "all"),
    ("isneginf", "isposinf"),
    ("cummin", "cummax"),
)
_CALLS = {**dict(_PAIRS), **{second: first for first, second in _PAIRS}}
_BOUNDED = {"clamp", "clamp_", "clip", "clamp_min", "clamp_max"}
_WORDS = {"__repr__", "__str__", "extra_repr"}  # functions whose results are only for people
_HEADED = (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.ClassDef, ast.Try)


@dataclass(frozen=True)
class Mutant:
    """One fault: the node of a module's tree that an operator changes, and the changed statement.

    Attributes:
        module: path of the file in the repository.
        line: where the statement begins.
        last_line: where it ends; of a compound statement, where its head ends.
        function: lines of the innermost function around it; (0, 0) where the module or a class body is.
        operator: kind of the fault.
        before: the statement, or the head of a compound one, on one line.
        after: the same with the fault.
        place: number of the node in the order of ``ast.walk``.
        variant: which of the operator's faults at this node.
    """

    module: str
    line: int
    last_line: int
    function: tuple[int, int]
    operator: str
    before: str
    after: str
    place: int
    variant: int

    @property
    def key(self) -> tuple[str, ...]:
        """The identifier of the mutant in a table, valid while the lines above it do not change."""
        return (self.module, str(self.line), self.operator, self.before, self.after)

    def tree(self) -> ast.Module:
        """The module with the fault."""
        tree = ast.parse(Path(self.module).read_text(encoding="utf-8"))
        node = list(ast.walk(tree))[self.place]
        list(_faults(node, _parents(tree)))[self.variant][1]()
        return ast.fix_missing_locations(tree)


def mutants_of(module: str) -> list[Mutant]:
    """Every fault that can be inserted into a file, in the order of its tree."""
    tree = ast.parse(Path(module).read_text(encoding="utf-8"))
    parents, found = _parents(tree), []
    for place, node in enumerate(ast.walk(tree)):
        if _is_words(node, parents):
            continue
        for variant, (operator, _) in enumerate(_faults(node, parents)):
            statement = _statement(node, parents)
            before = _head(statement)
            after = "(deleted)" if operator == "deletion" else _head_with_fault(statement, node, variant)
            lines = (statement.lineno, _last_line(statement), _function(statement, parents))
            found.append(Mutant(module, *lines, operator, before, after, place, variant))
    return found


def _head_with_fault(statement: ast.stmt, node: ast.AST, variant: int) -> str:
    twin = copy.deepcopy(statement)
    (place,) = (number for number, inner in enumerate(ast.walk(statement)) if inner is node)
    list(_faults(list(ast.walk(twin))[place], _parents(twin)))[variant][1]()
    return _head(twin)


def _faults(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Operators that apply at a node, each with the function that inserts its fault."""

    def put(name: str, value: object) -> Callable[[], object]:
        return lambda: setattr(node, name, value)

    def replace(new: ast.AST) -> Callable[[], object]:
        return lambda: _replace(node, new, parents)

    if isinstance(node, ast.BinOp | ast.AugAssign):
        for operator, table in (("arithmetic", _ARITHMETIC), ("boolean", _MASKS)):
            if type(node.op) in table:
                yield operator, put("op", table[type(node.op)]())
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        yield "comparison", put("ops", [_COMPARISONS[type(node.ops[0])]()])
    if isinstance(node, ast.BoolOp):
        yield "boolean", put("op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield "boolean", replace(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "unary minus", replace(node.operand)
    if isinstance(node, ast.Constant):
        kind = "default" if isinstance(parents[node], ast.arguments) else "constant"
        for value in _other_constants(node.value):
            yield kind, put("value", value)
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in _CALLS:
            yield "call", put(*_renamed(node.func, _CALLS[name]))
        if name in _BOUNDED and len(node.args) == 2:
            yield "call", put("args", node.args[::-1])
        bounds = [word for word in node.keywords if word.arg in ("min", "max")]
        if name in _BOUNDED and bounds:
            yield "call", lambda: [setattr(word, "arg", _CALLS[word.arg]) for word in bounds]
    if isinstance(node, ast.If | ast.IfExp) and not _is_negated_by_another(node.test):
        yield "condition", put("test", ast.UnaryOp(ast.Not(), node.test))
    if _can_be_deleted(node):
        yield "deletion", replace(ast.copy_location(ast.Pass(), node))


def _other_constants(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return {0: [1], 1: [0, 2]}.get(value, [value + 1])
    if isinstance(value, float):
        return [value * 1.1 if value else 1.0]
    return []


def _is_negated_by_another(test: ast.expr) -> bool:
    """Whether the operator for comparisons or for booleans already negates a condition."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _can_be_deleted(node: ast.AST) -> bool:
    """Whether a statement can be removed without leaving a name undefined."""
    if isinstance(node, ast.AugAssign):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and "super()" not in ast.unparse(node.value)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        names = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
        written = [target] if not isinstance(target, ast.Tuple) else target.elts
        return isinstance(target, ast.Subscript) or all(
            isinstance(name, ast.Name) and name.id in names for name in written
        )
    return False


def _is_words(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a node is an annotation, part of a message, or of a text that only people read."""
    while node in parents:
        parent = parents[node]
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return True
        if isinstance(node, ast.FunctionDef) and node.name in _WORDS:
            return True
        if isinstance(node, ast.Call) and _called(node) == "warn":
            return True
        if isinstance(node, ast.keyword) and node.arg == "stacklevel":
            return True
        if node in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
            return True
        if isinstance(parent, ast.FunctionDef | ast.ClassDef) and node in parent.decorator_list:
            return True
        node = parent
    return False


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _renamed(function: ast.expr, name: str) -> tuple[str, ast.expr]:
    if isinstance(function, ast.Attribute):
        return "func", ast.Attribute(function.value, name, ast.Load())
    return "func", ast.Name(name, ast.Load())


def _replace(node: ast.AST, new: ast.AST, parents: dict[ast.AST, ast.AST]) -> None:
    parent = parents[node]
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list) and node in value:
            value[value.index(node)] = new


def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _statement(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = parents[node]
    return node


def _last_line(statement: ast.stmt) -> int:
    if isinstance(statement, _HEADED):
        return max(statement.lineno, statement.body[0].lineno - 1)
    return statement.end_lineno or statement.lineno


def _head(statement: ast.stmt) -> str:
    if isinstance(statement, _HEADED):
        statement = copy.copy(statement)
        statement.body = [ast.Pass()]
        for name in ("orelse", "decorator_list", "handlers", "finalbody"):
            if hasattr(statement, name):
                setattr(statement, name, [])
        return ast.unparse(statement).rpartition("\n")[0].strip()
    return " ".join(ast.unparse(statement).split())


def _function(statement: ast.AST, parents: dict[ast.AST, ast.AST]) -> tuple[int, int]:
    """Lines of the body of the function that contains a statement, or that the statement defines."""
    node: ast.AST | None = statement
    while node is not None and not isinstance(node, ast.FunctionDef):
        node = parents.get(node)
    return (node.body[0].lineno, node.end_lineno or 0) if node else (0, 0)
