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
    from context_compiler.pipeline.dot import parse_dot
    from context_compiler.pipeline.dot_text import to_dot
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
    from context_compiler.pipeline.resume import resume_pipeline
    from context_compiler.pipeline.routing import select_edge
    from context_compiler.pipeline.run import open_runs, run_pipeline
    from context_compiler.pipeline.stage import Handler, Stage, traits
    from context_compiler.pipeline.state import ContextStore, Outcome, RunResult, RunState, StageStatus
    from context_compiler.pipeline.stores import Event, MemoryRuns, RunInfo, RunStore
    from context_compiler.pipeline.stores.files import FileRuns, in_folder
    from context_compiler.pipeline.stores.postgres import PostgresRuns
    from context_compiler.pipeline.stores.sql import SQLRuns
    from context_compiler.pipeline.stores.sqlite import SQLiteRuns, prune_runs
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
    "pipeline.artifacts": ("ArtifactInfo", "ArtifactStore"),
    "pipeline.check": ("validate", "validate_or_raise"),
    "pipeline.checkpoint": ("checkpoint_document", "read_checkpoint"),
    "pipeline.conditions": ("Condition", "ConditionError", "parse_condition"),
    "pipeline.config": ("Backoff", "RunConfig"),
    "pipeline.dbos_runs": ("DBOSRuns",),
    "pipeline.dot": ("parse_dot",),
    "pipeline.dot_text": ("to_dot",),
    "pipeline.draw": ("to_svg",),
    "pipeline.engine": ("Engine",),
    "pipeline.graph": ("Diagnostic", "Edge", "Graph", "Node", "Pipeline", "Severity"),
    "pipeline.handlers": ("build_handlers",),
    "pipeline.handlers.agent": ("Verdict",),
    "pipeline.interviewers": (
        *("AnswerValue", "AutoApprove", "CallbackInterviewer", "ConsoleInterviewer", "Interviewer"),
        *("Option", "Question", "QueueInterviewer", "RecordingInterviewer", "Reply"),
    ),
    "pipeline.queue": ("PendingQuestion", "RemoteInterviewer", "RunQueue", "Submission"),
    "pipeline.routing": ("select_edge",),
    "pipeline.resume": ("resume_pipeline",),
    "pipeline.run": ("open_runs", "run_pipeline"),
    "pipeline.stage": ("Handler", "Stage", "traits"),
    "pipeline.state": ("ContextStore", "Outcome", "RunResult", "RunState", "StageStatus"),
    "pipeline.stores": ("Event", "MemoryRuns", "RunInfo", "RunStore"),
    "pipeline.stores.files": ("FileRuns", "in_folder"),
    "pipeline.stores.postgres": ("PostgresRuns",),
    "pipeline.stores.sql": ("SQLRuns",),
    "pipeline.stores.sqlite": ("SQLiteRuns", "prune_runs"),
    "pipeline.stylesheet": ("StylesheetError", "apply_stylesheet", "parse_stylesheet"),
    "pipeline.threads": ("Session",),
    "pipeline.worker": ("Worker",),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
