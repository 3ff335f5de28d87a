"""What a template may say: placeholders, conditions, loops, macros, and filters that cannot grow out of hand.

This is a list of what is allowed. A template that passes `checked` is then rewritten by `metered`, so that
every turn of a loop, every piece of text and every value made on the way reports to a hook of the sandbox.
"""

from __future__ import annotations

from jinja2 import TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

FILTERS = (
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "sort",
    "string",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
)

TICK, WEIGH, JOINED, PART, LINE = " tick", " weigh", " joined", " part", " line"
"""Names of the sandbox's hooks, called like filters; with their blank no template can spell them."""

STATEMENTS = (nodes.Output, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock, nodes.With, nodes.Scope, nodes.Macro)

EXPRESSIONS = (
    *(nodes.TemplateData, nodes.Const, nodes.Name, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Concat),
    *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call),
)

ALLOWED = frozenset((nodes.Template, *STATEMENTS, *EXPRESSIONS))

CALLED: dict[type[nodes.Node], str] = {
    nodes.Pow: "the power operator",
    nodes.NSRef: "a namespace",
    nodes.CallBlock: "a call block",
    nodes.FilterBlock: "a filter block",
    nodes.FromImport: "import",
    nodes.ScopedEvalContextModifier: "autoescape",
}
"""What people call the things whose own names would not help them."""


def checked(tree: nodes.Template) -> nodes.Template:
    """The same tree, once everything in it is allowed; TemplateSyntaxError, with the line, where it is not."""
    for node in tree.find_all(nodes.Node):
        kind = type(node)
        if kind not in ALLOWED:
            raise TemplateSyntaxError(f"{CALLED.get(kind, kind.__name__.lower())} cannot be used here", node.lineno)
        if isinstance(node, nodes.AssignBlock) and node.filter is not None:
            raise TemplateSyntaxError("a set block cannot have a filter; apply it where the name is used", node.lineno)
        if isinstance(node, nodes.Filter) and node.name not in FILTERS:
            raise TemplateSyntaxError(f"there is no filter {node.name!r}; there are {', '.join(FILTERS)}", node.lineno)
    return tree


def metered(tree: nodes.Template) -> nodes.Template:
    """Rewrite a checked tree so that whatever it makes goes through the hooks."""
    return _Metering().visit(tree)


def _hook(name: str, node: nodes.Expr, *others: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(others), [], None, None, lineno=node.lineno)


def _tick(size: int, lineno: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_hook(TICK, nodes.Const(size, lineno=lineno)), lineno=lineno)


def _give_line(output: nodes.Output, at: int, static: list[str]) -> None:
    """Let a placeholder that stands alone own its line, and the blank line after it: when empty, it leaves no gap."""
    apart = static[at - 1].endswith("\n\n") or (at == 1 and static[0] == "\n")
    end = "\n\n" if apart and static[at + 1].startswith("\n\n") else "\n"
    lineno = output.nodes[at].lineno
    output.nodes[at] = _hook(LINE, output.nodes[at], nodes.Const(end, lineno=lineno))
    output.nodes[at + 1] = nodes.TemplateData(static[at + 1][len(end) :], lineno=lineno)


class _Metering(NodeTransformer):
    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        static = [child.data if isinstance(child, nodes.TemplateData) else "" for child in node.nodes]
        for at in range(1, len(static) - 1):
            if not static[at] and static[at - 1].endswith("\n") and static[at + 1].startswith("\n"):
                _give_line(node, at, static)
        return [_tick(sum(map(len, static)), node.lineno), node]

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick(0, node.lineno))
        if node.test is not None:
            each = _hook(TICK, nodes.Const(0, lineno=node.lineno))
            node.test = nodes.And(each, node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _hook(JOINED, *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        edges = (node.arg.start, node.arg.stop, node.arg.step)
        return _hook(PART, node.node, *(edge or nodes.Const(None, lineno=node.lineno) for edge in edges))

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        return _hook(WEIGH, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _hook(WEIGH, node) if node.ctx == "load" else node

    visit_List = visit_Dict = visit_Filter
