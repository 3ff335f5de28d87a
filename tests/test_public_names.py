"""Public imports work: those of the pages and examples, and every public path with its names."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

import pytest

from tests.support.pages import PAGES, ROOT, page

PATHS = {
    "context_compiler": (
        "ContextCompiler ContextCompilerError ContextConfig ContextManager Fidelity MemoryStore Money PostgresStore "
        "Recall Record RecordConversationStore RecordHistory SQLiteStore Settings Store Template TemplateLibrary "
        "TokenCounter View build_compiling_history_processor build_fidelity_preamble compile_view fidelity_on_resume "
        "list_templates resolve_fidelity resolve_thread_id"
    ),
    "context_compiler.chat": (
        "ChatSession Failure Occasion Reflection ReflectionPolicy Reply ScriptedModel Transcript safe_id"
    ),
    "context_compiler.errors": (
        "BudgetError CompileError ContextCompilerError ContextMemoryError FidelityError GraphError "
        "LayersError PipelineError SettingsError StoreError TemplateError TranscriptError"
    ),
    "context_compiler.fidelity": (
        "Fidelity build_fidelity_preamble fidelity_on_resume resolve_fidelity resolve_thread_id"
    ),
    "context_compiler.messages.importers": "Transcript parse_transcripts read_transcripts",
    "context_compiler.layers": (
        "ConversationContext ConversationHistory ConversationTurn CurationSummary EntityContext "
        "EntitySnapshot Layers NEEDS Need PendingState ReasoningTrace SessionIdRegistry StepSummary Turn "
        "TurnExecutionSummary build_act_context build_act_entity_context build_reply_context "
        "build_think_context build_understand_context format_conversation format_conversation_for_prompt "
        "format_entity_context format_reasoning format_reasoning_for_prompt from_json "
        "get_conversation_history get_conversation_with_engagement get_current_curation "
        "get_current_turn_steps get_entity_context get_execution_outcomes get_own_decision_history "
        "get_reasoning_trace get_recent_conversation summarise_turn to_json"
    ),
    "context_compiler.manager": (
        "Commit ContextConfig ContextManager ContextState ContextTurnResult Diff GroundedContext HealthScorer "
        "Match Memory MemoryRepository MemorySystem QualityScorer RollbackResult SQLiteMemory Saved Score "
        "Scorer SessionShelf Snapshot SummarizationResult VolatileMemory context_manager "
        "context_manager_with_versioning"
    ),
    "context_compiler.pipeline": (
        "AnswerValue ArtifactStore AutoApprove CallbackInterviewer Condition ConsoleInterviewer ContextStore "
        "DBOSRuns Diagnostic Edge Engine Event Graph Handler Interviewer Node Option Outcome Pipeline Question "
        "QueueInterviewer RecordingInterviewer Reply RunConfig RunInfo RunQueue RunResult RunState RunStore "
        "SQLiteRuns Session Severity Stage StageStatus Verdict Worker apply_stylesheet open_runs parse_condition "
        "parse_dot parse_stylesheet read_checkpoint resume_pipeline run_pipeline select_edge to_dot to_svg validate "
        "validate_or_raise"
    ),
    "context_compiler.settings": "Settings",
    "context_compiler.compiler.specifics": "TextSet specifics",
    "context_compiler.tokens": "TokenCounter",
    "context_compiler.workflow": (
        "Directive Directives Finding apply_directives load_workflow parse_workflow read_directives"
    ),
    "context_compiler.testing": (
        "ContextFailure Contexts Conversation LiveConversation Plant Planted Recording RecordingError ReplayError "
        "Request Survival assert_snapshot junit_properties live live_async plant read_recording recorded "
        "recorded_async replay replay_async snapshot_text write_html"
    ),
}
"""Public paths and the names that they have."""


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of every import of this package in a piece of Python."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "context_compiler":
            yield from ((node.module or "", alias.name) for alias in node.names)


def shown() -> set[tuple[str, str]]:
    """Every import of this package in the pages and examples."""
    blocks = [block for name in PAGES for block in re.findall(r"^```python\n(.*?)^```", page(name), re.M | re.S)]
    sources = [*blocks, *(file.read_text(encoding="utf-8") for file in (ROOT / "examples").glob("*.py"))]
    return {found for source in sources for found in imports(source)}


def test_names_imported_by_pages_and_examples_exist_and_are_listed() -> None:
    names = shown()
    assert len(names) > 20
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    assert not {(module, name) for module, name in names if name not in PATHS.get(module, "").split()}


@pytest.mark.parametrize("module", PATHS)
def test_a_public_path_has_its_names(module: str) -> None:
    home = importlib.import_module(module)
    missing = [name for name in PATHS[module].split() if not hasattr(home, name)]
    assert not missing
