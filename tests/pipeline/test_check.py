"""Every rule finds what it is about, says where and what to do, and is silent about a sound graph."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from context_compiler.errors import GraphError
from context_compiler.pipeline import Diagnostic, Graph, Severity, check, parse_dot, validate, validate_or_raise
from context_compiler.pipeline.attributes import EDGE_ATTRIBUTES, GRAPH_ATTRIBUTES, NODE_ATTRIBUTES
from context_compiler.pipeline.check import RULES

SOUND = """digraph sound {
    goal="Ship it"
    retry_target=plan
    start [shape=Mdiamond]
    plan [prompt="Plan for $goal", goal_gate=true, fidelity=full, thread_id=t]
    ask [shape=hexagon, label="Good?", human.default_choice=plan]
    run [shape=parallelogram, tool_command="make", timeout=15m, max_retries=2]
    done [shape=Msquare]
    start -> plan -> ask
    ask -> plan [label="[R] Again"]
    ask -> run [label="[Y] Yes", weight=2]
    run -> done
}"""


def with_(statements: str, *, without: str = "") -> str:
    """The sound graph with something more in it, or with less."""
    return SOUND.replace(without, "").replace("    start -> plan", f"    {statements}\n    start -> plan", 1)


BRANCHES = """p [shape=component]; plan -> p -> one -> join; p -> two -> join; join -> run; join [shape=tripleoctagon]
    one [prompt=x, fidelity=full, thread_id=t]; two [prompt=x, fidelity=full, thread_id={}]"""

CASES = [
    ("start_node", "ERROR", with_("", without="start [shape=Mdiamond]").replace("start ->", "first ->"), ""),
    ("start_node", "ERROR", with_("again [shape=Mdiamond]; again -> plan"), "again"),
    ("terminal_node", "ERROR", SOUND.replace("done", "over").replace(" [shape=Msquare]", "[label=x]"), ""),
    ("terminal_node", "ERROR", with_("over [shape=Msquare]; run -> over"), "over"),
    ("reachability", "ERROR", with_("lost [prompt=x]; lost -> run"), "lost"),
    ("edge_target_exists", "INFO", with_("run -> nowhere -> done"), "run -> nowhere"),
    ("edge_target_exists", "WARNING", with_("run -> plann -> done"), "run -> plann"),
    ("edge_target_exists", "WARNING", with_("run -> paln -> done"), "run -> paln"),
    ("dead_end", "WARNING", with_("plan -> end_here; end_here [prompt=x]"), "end_here"),
    ("exit_reachable", "WARNING", with_("plan -> a -> b -> c; a [prompt=x]; b [prompt=x]; c [prompt=x]"), "a"),
    ("cycle_without_exit", "WARNING", with_("plan -> a -> b -> a; a [prompt=x]; b [prompt=x]"), "a"),
    ("tool_command_used", "WARNING", with_('a [prompt=x, tool_command="make"]; plan -> a -> run'), "a"),
    (
        "tool_command_values",
        "WARNING",
        with_("t [shape=parallelogram, tool_command=\"sh -c 'echo ${params.x}'\"]; plan -> t -> run"),
        "t",
    ),
    ("max_retries_used", "WARNING", with_("q [shape=diamond, max_retries=2]; plan -> q -> run"), "q"),
    ("start_no_incoming", "ERROR", with_("run -> start"), "run -> start"),
    ("exit_no_outgoing", "ERROR", with_("done -> plan"), "done -> plan"),
    ("condition_syntax", "ERROR", with_('run -> plan [condition="outcome > 1"]'), "run -> plan"),
    ("condition_syntax", "ERROR", with_('run -> plan [condition="a=1 || b=2"]'), "run -> plan"),
    ("stylesheet_syntax", "ERROR", with_('model_stylesheet="* { llm_model }"'), ""),
    ("join_policy_known", "ERROR", with_("p [shape=component, join_policy=most]; plan -> p -> run"), "p"),
    ("error_policy_known", "WARNING", with_("p [shape=component, error_policy=most]; plan -> p -> run"), "p"),
    ("retry_policy_known", "WARNING", with_("p [prompt=x, retry_policy=often]; plan -> p -> run"), "p"),
    ("directive_known", "WARNING", with_('p [prompt="@modle x\\nDo it"]; plan -> p -> run'), "p"),
    ("type_known", "WARNING", with_("p [type=magic]; plan -> p -> run"), "p"),
    ("fidelity_valid", "WARNING", with_("p [prompt=x, fidelity=medium]; plan -> p -> run"), "p"),
    ("fidelity_valid", "WARNING", with_("plan -> run [fidelity=all]"), "plan -> run"),
    ("fidelity_valid", "WARNING", with_("default_fidelity=some"), ""),
    ("retry_target_exists", "WARNING", with_("p [prompt=x, retry_target=gone]; plan -> p -> run"), "p"),
    ("retry_target_exists", "WARNING", with_("fallback_retry_target=gone"), ""),
    ("goal_gate_has_retry", "WARNING", with_("", without="retry_target=plan"), "plan"),
    ("prompt_on_llm_nodes", "WARNING", with_("p; plan -> p -> run"), "p"),
    ("full_without_thread", "INFO", with_("p [prompt=x, fidelity=full]; plan -> p -> run"), "p"),
    ("thread_without_full", "WARNING", with_("p [prompt=x, thread_id=t]; plan -> p -> run"), "p"),
    ("thread_without_full", "WARNING", with_("p [prompt=x]; plan -> p [thread_id=t]; p -> run"), "plan -> p"),
    ("all_conditional_edges", "WARNING", with_('p [prompt=x]; plan -> p -> run [condition="a=1"]'), "p"),
    (
        "all_conditional_edges",
        "INFO",
        with_('p [prompt=x]; plan -> p; p -> run [condition="outcome=success"]; p -> plan [condition="outcome=fail"]'),
        "p",
    ),
    ("thread_across_branches", "WARNING", with_(BRANCHES.format("t")), "p"),
    ("condition_on_human_gate", "WARNING", with_('ask -> done [condition="a=1"]'), "ask -> done"),
    ("condition_operator", "WARNING", with_('run -> plan [condition="a == 1"]'), "run -> plan"),
    ("unknown_attribute", "WARNING", with_("p [prompt=x, fidelty=full]; plan -> p -> run"), "p"),
    ("unknown_attribute", "INFO", with_("p [prompt=x, zzz=1]; plan -> p -> run"), "p"),
    ("old_spelling", "INFO", with_("default_max_retry=1"), ""),
    ("value_type", "WARNING", with_("p [prompt=x, timeout=soon]; plan -> p -> run"), "p"),
    ("value_type", "WARNING", with_("p [prompt=x, max_retries=-1]; plan -> p -> run"), "p"),
    ("value_type", "WARNING", with_("p [prompt=x, max_retries=1.5]; plan -> p -> run"), "p"),
    ("value_type", "WARNING", with_("p [prompt=x, goal_gate=perhaps]; plan -> p -> run"), "p"),
    ("reasoning_effort_known", "WARNING", with_("p [prompt=x, reasoning_effort=max]; plan -> p -> run"), "p"),
    ("shape_known", "INFO", with_("p [prompt=x, shape=star]; plan -> p -> run"), "p"),
    ("stylesheet_property", "WARNING", with_('model_stylesheet="* { temperature: 1; }"'), ""),
    ("tool_command_required", "WARNING", with_("p [shape=parallelogram]; plan -> p -> run"), "p"),
    (
        "default_choice_exists",
        "WARNING",
        with_("p [shape=hexagon, human.default_choice=gone]; plan -> p -> run"),
        "p",
    ),
]


def found(source: str) -> list[Diagnostic]:
    return list(validate(parse_dot(source)))


def test_a_sound_graph_has_no_findings() -> None:
    assert found(SOUND) == []
    assert validate_or_raise(parse_dot(SOUND)) == ()


@pytest.mark.parametrize(
    ("command", "goal", "warns"),
    [
        ("sh build.sh $goal", "Ship it", False),
        ("sh build.sh $goal", "Ship it; now", True),
        ("./build.sh $goal", "Ship it; now", False),
        ("python3 -m build $goal", "Ship it; now", False),
        ("sh build.sh $GOAL", "Ship it; now", False),
    ],
)
def test_a_goal_that_a_command_cannot_take_is_known_before_the_run(command: str, goal: str, warns: bool) -> None:
    source = with_(f't [shape=parallelogram, tool_command="{command}"]; plan -> t -> run').replace("Ship it", goal)
    assert ("tool_command_values" in [one.rule for one in found(source)]) == warns


@pytest.mark.parametrize(
    ("rule", "severity", "source", "location"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_a_rule_finds_its_defect_with_place_and_remedy(rule: str, severity: str, source: str, location: str) -> None:
    hits = [hit for hit in found(source) if hit.rule == rule]
    assert hits, found(source)
    assert (hits[0].severity, hits[0].place) == (severity, location)
    assert hits[0].message and hits[0].fix
    assert (hits[0].line is not None) == bool(location)
    others = {diagnostic.rule for diagnostic in found(source)} - {rule, "all_conditional_edges", "edge_target_exists"}
    assert len(others) <= 1, others


def test_every_rule_has_a_case() -> None:
    named = {name for rule in RULES for name in re.findall(r'"([a-z_]+)"', _source(rule)) if "_" in name}
    tested = {case[0] for case in CASES}
    assert {name for name in named if name in KNOWN} <= tested
    assert {one.rule for case in CASES for one in found(case[2])} <= tested | {"missing_separator"}


KNOWN = {case[0] for case in CASES} | {"start_node", "terminal_node"}


def _source(rule: object) -> str:
    return inspect.getsource(rule)  # type: ignore[arg-type]


def test_every_attribute_that_the_code_reads_is_a_known_one() -> None:
    package = Path(check.__file__).parent
    read = re.compile(r"\.(text|flag|whole|number|seconds|raw)\(\"([\w.]+)\"")
    member = re.compile(r"(?P<name>\w+) = Attribute\(Attributed\.(?P<kind>\w+)\)")
    kinds = {"text": "text", "flag": "flag", "whole": "whole", "number": "number", "seconds": "duration"}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        members = [(found["kind"], found["name"]) for found in member.finditer(source)]
        assert bool(members) == (path.name == "graph.py")
        for kind, name in [*read.findall(source), *members]:
            tables = (GRAPH_ATTRIBUTES, NODE_ATTRIBUTES, EDGE_ATTRIBUTES)
            declared = {table[name] for table in tables if name in table}
            assert declared, f"{path.name} reads {name!r}, which a check would call unknown"
            assert kind == "raw" or kinds[kind] in declared, f"{path.name} reads {name!r} as {kind}"


def test_every_rule_is_on_the_page_about_pipelines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    assert not [rule for rule in KNOWN - {"unknown_attribute"} if f"`{rule}`" not in page]


def test_an_orphan_is_called_unreachable() -> None:
    (one,) = [one for one in found(with_("lost [prompt=x]")) if one.rule == "reachability"]
    assert "unreachable" in one.message and "orphan" in one.message


def test_a_stage_reached_only_by_a_retry_target_is_reachable() -> None:
    graph = with_("fix [prompt=x]; fix -> run").replace("goal_gate=true", "goal_gate=true, retry_target=fix")
    assert [one for one in found(graph) if one.severity is Severity.ERROR] == []


def test_conditions_that_cover_every_outcome_are_accepted() -> None:
    edges = 'plan -> p; p -> run [condition="tests=red"]; p -> plan [condition="tests!=red"]'
    assert found(with_(f"p [prompt=x]; {edges}")) == []


def test_branches_with_their_own_threads_are_accepted() -> None:
    (note,) = found(with_(BRANCHES.format("u")))
    assert (note.rule, note.place) == ("full_without_thread", "two")


CODE = "[prompt=x, fidelity=full, thread_id=code]"


@pytest.mark.parametrize(
    ("stages", "first"),
    [
        (f"a [prompt=x]; b {CODE}; c {CODE}; start->a->b->c->b; c->done", ["b"]),
        (f"a {CODE}; b {CODE}; c {CODE}; start->a->b->c->a; c->done", []),
        (f"a {CODE}; q [shape=diamond]; b {CODE}; start->q->a->b->done; q->b", []),
        (f"a [prompt=x]; b {CODE}; c {CODE}; start->a->b->c->done; a->c", ["b", "c"]),
        ("a [prompt=x]; b [prompt=x]; start->a->b->done; a->b [fidelity=full, thread_id=t]", ["b"]),
        ("default_thread_id=t; node [prompt=x]; a; b [fidelity=full]; c [fidelity=full]; start->a->b->c->done", ["b"]),
        (
            "a [shape=parallelogram, tool_command=true]; subgraph s { label=X; b [prompt=x, fidelity=full] }"
            "start->a->b->done",
            ["b"],
        ),
    ],
)
def test_a_stage_that_begins_its_thread_after_other_stages_is_noted(stages: str, first: list[str]) -> None:
    source = f"digraph g {{ start [shape=Mdiamond]; done [shape=Msquare]; {stages} }}"
    hits = [one for one in found(source) if one.rule == "full_without_thread"]
    assert [one.place for one in hits] == first
    assert all(one.severity is Severity.INFO and "sees nothing of the stages before it" in one.message for one in hits)


def test_start_and_exit_are_recognised_by_id_without_a_shape() -> None:
    assert found("digraph g { start [label=s]; a [prompt=x]; end [label=e]; start -> a -> end }") == []
    graph = parse_dot("digraph g { Begin [node_type=start, label=s]; Exit [label=e]; Begin -> Exit }")
    assert (graph.starts[0].name, graph.exits[0].name) == ("Begin", "Exit")


def test_a_custom_handler_is_a_known_type() -> None:
    graph = parse_dot(with_("p [type=magic]; plan -> p -> run"))
    assert validate(graph, handlers=["magic"]) == ()


def test_a_custom_rule_is_applied_too() -> None:
    def no_run(graph: Graph) -> Iterator[Diagnostic]:
        if "run" in graph.nodes:
            yield Diagnostic(rule="no_run", severity=Severity.ERROR, message="no", node_id="run", fix="rename it")

    assert [diagnostic.rule for diagnostic in validate(parse_dot(SOUND), [no_run])] == ["no_run"]
    with pytest.raises(GraphError, match="no_run: run: no; rename it"):
        validate_or_raise(parse_dot(SOUND), [no_run])


def test_errors_come_first_and_prevent_a_run() -> None:
    graph = parse_dot(with_("lost [promt=x]; run -> nowhere -> start"), "plan.dot")
    severities = [diagnostic.severity for diagnostic in validate(graph)]
    assert severities == sorted(severities, key=list(Severity).index)
    with pytest.raises(GraphError) as caught:
        validate_or_raise(graph)
    assert caught.value.line == 9 and str(caught.value).startswith("plan.dot:9:")
    assert "reachability" in str(caught.value) and "(and 1 more)" in str(caught.value)
    assert caught.value.diagnostics == validate(graph)


def test_warnings_of_the_parser_are_part_of_the_check() -> None:
    assert [one.rule for one in found(SOUND.replace("max_retries=2", "max_retries=2,"))] == ["trailing_separator"]


SMOKE = """digraph test_pipeline {
    graph [goal="Create a hello world Python script"]
    start [shape=Mdiamond]
    plan [shape=box, prompt="Plan how to create a hello world script for: $goal"]
    implement [shape=box, prompt="Write the code based on the plan", goal_gate=true]
    review [shape=box, prompt="Review the code for correctness"]
    done [shape=Msquare]
    start -> plan
    plan -> implement
    implement -> review [condition="outcome=success"]
    implement -> plan [condition="outcome=fail", label="Retry"]
    review -> done [condition="outcome=success"]
    review -> implement [condition="outcome=fail", label="Fix"]
}"""


def test_the_smoke_graph_has_a_warning_for_its_gate_only() -> None:
    graph = parse_dot(SMOKE)
    assert (graph.goal, len(graph.nodes), len(graph.edges)) == ("Create a hello world Python script", 5, 6)
    worse = [one.rule for one in validate(graph) if one.severity is not Severity.INFO]
    assert worse == ["goal_gate_has_retry"]


def test_a_branch_ends_where_the_branches_meet() -> None:
    after = (
        "p [shape=component]; plan -> p -> one -> join; p -> two -> join; join -> run; one [prompt=x]; two [prompt=x]"
    )
    join = "join [prompt=x, fidelity=full, thread_id=t]"
    assert not [hit for hit in found(with_(f"{after}; {join}")) if hit.rule == "thread_across_branches"]
    inner = """p [shape=component]; plan -> p -> q -> one -> near -> far -> join; q -> two -> near; p -> three -> join
        join -> run; q [shape=component]; near [shape=tripleoctagon]; join [shape=tripleoctagon]
        one [prompt=x]; two [prompt=x]; node [fidelity=full, thread_id=t]; far [prompt=x]; three [prompt=x]"""
    assert [hit.node_id for hit in found(with_(inner)) if hit.rule == "thread_across_branches"] == ["p"]


def test_a_gate_that_restarts_the_run_has_somewhere_to_go_back_to() -> None:
    text = """digraph g { start [shape=Mdiamond]; g [prompt=x, goal_gate=true]; done [shape=Msquare]
        start -> g -> done; g -> again [condition="outcome=fail", loop_restart=LOOP]; again [prompt=x]; again -> g }"""
    rules = {
        value: {diagnostic.rule for diagnostic in validate(parse_dot(text.replace("LOOP", value)))}
        for value in ("true", "false")
    }
    assert "goal_gate_has_retry" not in rules["true"] and "goal_gate_has_retry" in rules["false"]


def test_a_retry_target_that_leads_back_counts_as_a_path_to_the_exit() -> None:
    assert not validate(parse_dot(with_("plan -> a -> b -> a; a [prompt=x]; b [prompt=x, retry_target=plan]")))
