"""Rules about what will surprise somebody: gates without a way back, threads nobody shares, exits that may be shut."""

from __future__ import annotations

from collections.abc import Iterator

from context_compiler.pipeline.conditions import Clause, ConditionError, parse_condition, status_word
from context_compiler.pipeline.diagnostics import Diagnostic
from context_compiler.pipeline.graph import Edge, Graph, Node
from context_compiler.pipeline.join import meeting
from context_compiler.pipeline.nodes import DEFAULT_HANDLER
from context_compiler.pipeline.structure import INFO, WARNING, of_edge, of_node


def goal_gate_has_retry(graph: Graph) -> Iterator[Diagnostic]:
    """A gate that can keep a run from ending says where to try again."""
    if graph.text("retry_target") or graph.text("fallback_retry_target"):
        return
    for node in graph.nodes.values():
        if node.goal_gate and not (node.retry_target or node.fallback_retry_target):
            message = "a goal gate without a retry_target: the run fails when it is not met"
            yield of_node(node, "goal_gate_has_retry", WARNING, message, "give it a retry_target")


def prompt_on_llm_nodes(graph: Graph) -> Iterator[Diagnostic]:
    """A stage that a model runs says what to do."""
    for node in graph.with_ends().nodes.values():
        if node.handler == DEFAULT_HANDLER and not node.prompt and node.raw("label") is None:
            message = "an agent's stage with neither prompt nor label"
            yield of_node(node, "prompt_on_llm_nodes", WARNING, message, "give it a prompt")


def tool_command_required(graph: Graph) -> Iterator[Diagnostic]:
    """A tool's stage has a command."""
    for node in graph.nodes.values():
        if node.handler == "tool" and not node.text("tool_command"):
            yield of_node(node, "tool_command_required", WARNING, "a tool's stage without tool_command", "give it one")


def full_without_thread(graph: Graph) -> Iterator[Diagnostic]:
    """A stage at `full` says whose conversation it continues."""
    if graph.default_thread_id:
        return
    for node in graph.nodes.values():
        if node.handler != DEFAULT_HANDLER or node.thread_id or node.classes:
            continue
        edges = graph.incoming(node.name)
        if any(_mode(edge, node, graph) == "full" and not edge.thread_id for edge in edges):
            message = "full without a thread: it continues a thread named after the stage before it"
            yield of_node(
                node, "full_without_thread", INFO, message, "give the stages that belong together a thread_id"
            )


def thread_without_full(graph: Graph) -> Iterator[Diagnostic]:
    """A thread is named where a conversation is continued."""
    for node in graph.nodes.values():
        modes = {_mode(edge, node, graph) for edge in graph.incoming(node.name)} or {_mode(None, node, graph)}
        if node.thread_id and "full" not in modes:
            message = f"thread_id {node.thread_id!r} has no effect: it begins afresh every time"
            yield of_node(node, "thread_without_full", WARNING, message, "set fidelity=full, or leave thread_id out")
    for edge in graph.edges:
        node = graph.nodes.get(edge.target)
        if edge.thread_id and node is not None and _mode(edge, node, graph) != "full":
            message = f"thread_id {edge.thread_id!r} has no effect: the target begins afresh"
            yield of_edge(edge, "thread_without_full", WARNING, message, "set fidelity=full, or leave thread_id out")


def _mode(edge: Edge | None, node: Node, graph: Graph) -> str:
    said = (edge.fidelity if edge else "", node.fidelity, graph.default_fidelity)
    return next((one.strip() for one in said if one.strip()), "")


def all_conditional_edges(graph: Graph) -> Iterator[Diagnostic]:
    """Some way out of a stage is always open."""
    for node in graph.nodes.values():
        edges = graph.outgoing(node.name)
        if not edges or node.handler in ("parallel", "exit") or not all(edge.condition for edge in edges):
            continue
        covered = _covered(edges)
        if covered == "all":
            continue
        message = "every edge that leaves it has a condition; the run ends here when none holds"
        severity = INFO if covered == "success and fail" else WARNING
        yield of_node(node, "all_conditional_edges", severity, message, "add an edge without a condition")


def _covered(edges: tuple[Edge, ...]) -> str:
    """What the conditions on some edges leave open: nothing (`all`), rare outcomes, or more."""
    single = [clause for edge in edges if (clause := _only_clause(edge)) is not None]
    equal = {(clause.key, status_word(clause.value)) for clause in single if clause.operator == "="}
    if any((clause.key, status_word(clause.value)) in equal for clause in single if clause.operator == "!="):
        return "all"
    return "success and fail" if {("outcome", "success"), ("outcome", "fail")} <= equal else ""


def _only_clause(edge: Edge) -> Clause | None:
    try:
        clauses = parse_condition(edge.condition).clauses
    except ConditionError:
        return None
    return clauses[0] if len(clauses) == 1 else None


def condition_on_human_gate(graph: Graph) -> Iterator[Diagnostic]:
    """What a person chooses is what happens."""
    for node in graph.nodes.values():
        for edge in graph.outgoing(node.name) if node.handler == "wait.human" else ():
            if edge.condition:
                message = "a condition on an edge that a person chooses: when it holds, the choice is not looked at"
                yield of_edge(edge, "condition_on_human_gate", WARNING, message, "use labels only")


def default_choice_exists(graph: Graph) -> Iterator[Diagnostic]:
    """The choice that stands for silence is one of the choices."""
    for node in graph.nodes.values():
        choice = node.text("human.default_choice")
        if choice and choice not in {edge.target for edge in graph.outgoing(node.name)}:
            message = f"human.default_choice {choice!r} is no stage that an edge leads to from here"
            yield of_node(node, "default_choice_exists", WARNING, message, "name the target of one of its edges")


def thread_across_branches(graph: Graph) -> Iterator[Diagnostic]:
    """Branches that run at the same time do not talk in one thread."""
    if not any(thing.thread_id for things in (graph.nodes.values(), graph.edges) for thing in things):
        return
    for node in graph.nodes.values():
        if node.handler != "parallel" or not graph.outgoing(node.name):
            continue
        seen: dict[str, str] = {}
        join = meeting(graph, node.name)
        for edge in graph.outgoing(node.name):
            for thread in dict.fromkeys(_threads(graph, edge, join)):
                if seen.setdefault(thread, edge.target) != edge.target:
                    message = f"the branches {seen[thread]!r} and {edge.target!r} both use the thread {thread!r}"
                    fix = "give each branch a thread_id of its own: what one adds, the other does not see"
                    yield of_node(node, "thread_across_branches", WARNING, message, fix)


def _threads(graph: Graph, first: Edge, join: str | None) -> Iterator[str]:
    """The threads that stages of a branch name, up to where the branches are joined."""
    waiting, reached = [first], {first.target}
    while waiting:
        edge = waiting.pop()
        node = graph.nodes.get(edge.target)
        if node is None or node.name == join or node.handler == "exit":
            continue
        if _mode(edge, node, graph) == "full" and (node.thread_id or edge.thread_id):
            yield node.thread_id or edge.thread_id
        onward = [one for one in graph.outgoing(node.name) if one.target not in reached]
        reached |= {one.target for one in onward}
        waiting += onward


ADVICE = (
    *(goal_gate_has_retry, prompt_on_llm_nodes, tool_command_required, full_without_thread, thread_without_full),
    *(all_conditional_edges, condition_on_human_gate, default_choice_exists, thread_across_branches),
)
