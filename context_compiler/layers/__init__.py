"""The three layers of a session (entities, conversation, reasoning), and what each node sees of them.

`SessionIdRegistry` contains the entities. `ConversationContext` is the stored state of a session.
`build_understand_context`, `build_think_context`, `build_act_context` and `build_reply_context` select the context
of each node.
"""

from __future__ import annotations

from context_compiler.layers.context import (
    NEEDS,
    Need,
    build_act_context,
    build_act_entity_context,
    build_reply_context,
    build_think_context,
    build_understand_context,
    layer_prompt,
    layer_texts,
)
from context_compiler.layers.conversation import (
    ConversationContext,
    conversation_of,
    format_conversation,
    format_conversation_for_prompt,
    from_json,
    get_conversation_history,
    get_conversation_with_engagement,
    get_recent_conversation,
    to_json,
)
from context_compiler.layers.entities import format_entity_context, get_entity_context
from context_compiler.layers.models import (
    ConversationHistory,
    ConversationTurn,
    CurationSummary,
    EntityContext,
    EntitySnapshot,
    PendingState,
    ReasoningTrace,
    StepSummary,
    TurnExecutionSummary,
)
from context_compiler.layers.reasoning import (
    format_reasoning,
    format_reasoning_for_prompt,
    get_own_decision_history,
    get_reasoning_trace,
)
from context_compiler.layers.registry import CurationResult, SessionIdRegistry, curate
from context_compiler.layers.retention import summarise_turn
from context_compiler.layers.session import Layers, Turn
from context_compiler.layers.turn import TurnState, get_current_curation, get_current_turn_steps, get_execution_outcomes

__all__ = [
    "ConversationContext",
    "ConversationHistory",
    "ConversationTurn",
    "CurationResult",
    "CurationSummary",
    "EntityContext",
    "EntitySnapshot",
    "Layers",
    "NEEDS",
    "Need",
    "PendingState",
    "ReasoningTrace",
    "SessionIdRegistry",
    "StepSummary",
    "Turn",
    "TurnExecutionSummary",
    "TurnState",
    "build_act_context",
    "build_act_entity_context",
    "build_reply_context",
    "build_think_context",
    "build_understand_context",
    "conversation_of",
    "curate",
    "format_conversation",
    "format_conversation_for_prompt",
    "format_entity_context",
    "format_reasoning",
    "format_reasoning_for_prompt",
    "from_json",
    "get_conversation_history",
    "get_conversation_with_engagement",
    "get_current_curation",
    "get_current_turn_steps",
    "get_entity_context",
    "get_execution_outcomes",
    "get_own_decision_history",
    "get_reasoning_trace",
    "get_recent_conversation",
    "layer_prompt",
    "layer_texts",
    "summarise_turn",
    "to_json",
]
