"""Pipelines: validate, draw, run and resume DOT graphs whose stages are agents.

Names are imported on first use, so that validating or drawing a graph does not import Pydantic AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import lazy_exports

if TYPE_CHECKING:
    from context_compiler.pipeline.artifacts import ArtifactInfo, ArtifactStore
    from context_compiler.pipeline.check import validate, validate_or_raise
    from context_compiler.pipeline.checkpoint import checkpoint_document, read_checkpoint
    from context_compiler.pipeline.conditions import Condition, ConditionError, parse_condition
    from context_compiler.pipeline.config import Backoff, RunConfig
    from context_compiler.pipeline.dbos_runs import DBOSRuns
    from context_compiler.pipeline.dot import parse_dot, to_dot
    from context_compiler.pipeline.draw import to_svg
    from context_compiler.pipeline.engine import Engine
    from context_compiler.pipeline.graph import Diagnostic, Edge, Graph, Node, Pipeline, Severity
    from context_compiler.pipeline.handlers import build_handlers
    from context_compiler.pipeline.handlers.agent import Verdict
    from context_compiler.pipeline.interviewers import (
        AnswerValue,
        AutoApprove,
        CallbackInterviewer,
        ConsoleInterviewer,
        Interviewer,
        Option,
        Question,
        QueueInterviewer,
        RecordingInterviewer,
        Reply,
    )
    from context_compiler.pipeline.queue import PendingQuestion, RemoteInterviewer, RunQueue, Submission
    from context_compiler.pipeline.routing import select_edge
    from context_compiler.pipeline.run import open_runs, resume_pipeline, run_pipeline
    from context_compiler.pipeline.stage import Handler, Stage, traits
    from context_compiler.pipeline.state import ContextStore, Outcome, RunResult, RunState, StageStatus
    from context_compiler.pipeline.stores import Event, MemoryRuns, RunInfo, RunStore, prune_runs
    from context_compiler.pipeline.stores.files import FileRuns, in_folder
    from context_compiler.pipeline.stores.postgres import PostgresRuns
    from context_compiler.pipeline.stores.sql import SQLRuns
    from context_compiler.pipeline.stores.sqlite import SQLiteRuns
    from context_compiler.pipeline.stylesheet import StylesheetError, apply_stylesheet, parse_stylesheet
    from context_compiler.pipeline.threads import Session
    from context_compiler.pipeline.worker import Worker

__all__ = [
    "AnswerValue",
    "ArtifactInfo",
    "ArtifactStore",
    "AutoApprove",
    "Backoff",
    "CallbackInterviewer",
    "Condition",
    "ConditionError",
    "ConsoleInterviewer",
    "ContextStore",
    "DBOSRuns",
    "Diagnostic",
    "Edge",
    "Engine",
    "Event",
    "FileRuns",
    "Graph",
    "Handler",
    "Interviewer",
    "MemoryRuns",
    "Node",
    "Option",
    "Outcome",
    "PendingQuestion",
    "Pipeline",
    "PostgresRuns",
    "Question",
    "QueueInterviewer",
    "RecordingInterviewer",
    "RemoteInterviewer",
    "Reply",
    "RunConfig",
    "RunInfo",
    "RunQueue",
    "RunResult",
    "RunState",
    "RunStore",
    "SQLRuns",
    "SQLiteRuns",
    "Session",
    "Severity",
    "Stage",
    "StageStatus",
    "StylesheetError",
    "Submission",
    "Verdict",
    "Worker",
    "apply_stylesheet",
    "build_handlers",
    "checkpoint_document",
    "in_folder",
    "open_runs",
    "parse_condition",
    "parse_dot",
    "parse_stylesheet",
    "prune_runs",
    "read_checkpoint",
    "resume_pipeline",
    "run_pipeline",
    "select_edge",
    "to_dot",
    "to_svg",
    "traits",
    "validate",
    "validate_or_raise",
]

_HOMES = {
    "AnswerValue": "pipeline.interviewers",
    "ArtifactInfo": "pipeline.artifacts",
    "ArtifactStore": "pipeline.artifacts",
    "AutoApprove": "pipeline.interviewers",
    "Backoff": "pipeline.config",
    "CallbackInterviewer": "pipeline.interviewers",
    "Condition": "pipeline.conditions",
    "ConditionError": "pipeline.conditions",
    "ConsoleInterviewer": "pipeline.interviewers",
    "ContextStore": "pipeline.state",
    "DBOSRuns": "pipeline.dbos_runs",
    "Diagnostic": "pipeline.graph",
    "Edge": "pipeline.graph",
    "Engine": "pipeline.engine",
    "Event": "pipeline.stores",
    "FileRuns": "pipeline.stores.files",
    "Graph": "pipeline.graph",
    "Handler": "pipeline.stage",
    "Interviewer": "pipeline.interviewers",
    "MemoryRuns": "pipeline.stores",
    "Node": "pipeline.graph",
    "Option": "pipeline.interviewers",
    "Outcome": "pipeline.state",
    "PendingQuestion": "pipeline.queue",
    "Pipeline": "pipeline.graph",
    "PostgresRuns": "pipeline.stores.postgres",
    "Question": "pipeline.interviewers",
    "QueueInterviewer": "pipeline.interviewers",
    "RecordingInterviewer": "pipeline.interviewers",
    "RemoteInterviewer": "pipeline.queue",
    "Reply": "pipeline.interviewers",
    "RunConfig": "pipeline.config",
    "RunInfo": "pipeline.stores",
    "RunQueue": "pipeline.queue",
    "RunResult": "pipeline.state",
    "RunState": "pipeline.state",
    "RunStore": "pipeline.stores",
    "SQLRuns": "pipeline.stores.sql",
    "SQLiteRuns": "pipeline.stores.sqlite",
    "Session": "pipeline.threads",
    "Severity": "pipeline.graph",
    "Stage": "pipeline.stage",
    "StageStatus": "pipeline.state",
    "StylesheetError": "pipeline.stylesheet",
    "Submission": "pipeline.queue",
    "Verdict": "pipeline.handlers.agent",
    "Worker": "pipeline.worker",
    "apply_stylesheet": "pipeline.stylesheet",
    "build_handlers": "pipeline.handlers",
    "checkpoint_document": "pipeline.checkpoint",
    "in_folder": "pipeline.stores.files",
    "open_runs": "pipeline.run",
    "parse_condition": "pipeline.conditions",
    "parse_dot": "pipeline.dot",
    "parse_stylesheet": "pipeline.stylesheet",
    "prune_runs": "pipeline.stores",
    "read_checkpoint": "pipeline.checkpoint",
    "resume_pipeline": "pipeline.run",
    "run_pipeline": "pipeline.run",
    "select_edge": "pipeline.routing",
    "to_dot": "pipeline.dot",
    "to_svg": "pipeline.draw",
    "traits": "pipeline.stage",
    "validate": "pipeline.check",
    "validate_or_raise": "pipeline.check",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
