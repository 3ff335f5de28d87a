"""Three layers of context: what exists, what was said, and what was decided; each node is told what it needs of them.

`SessionIdRegistry` knows the entities of a session, a `ConversationContext` is all of a session that is stored, and
`build_understand_context`, `build_think_context`, `build_act_context` and `build_reply_context` say who sees what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import public

if TYPE_CHECKING:
    from context_compiler.layers.builders import (
        build_act_context,
        build_act_entity_context,
        build_reply_context,
        build_think_context,
        build_understand_context,
        layer_texts,
    )
    from context_compiler.layers.context import layer_prompt
    from context_compiler.layers.conversation import (
        format_conversation,
        format_conversation_for_prompt,
        get_conversation_history,
        get_conversation_with_engagement,
        get_recent_conversation,
    )
    from context_compiler.layers.curation import Curated, curate
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
        get_current_curation,
        get_current_turn_steps,
        get_execution_outcomes,
        get_own_decision_history,
        get_reasoning_trace,
    )
    from context_compiler.layers.registry import SessionIdRegistry
    from context_compiler.layers.retention import summarise_turn
    from context_compiler.layers.session import Layers, Turn
    from context_compiler.layers.state import ConversationContext, conversation_of, from_json, to_json
    from context_compiler.layers.turn import TurnState
    from context_compiler.layers.visibility import NEEDS, Need

__all__ = [
    "ConversationContext",
    "ConversationHistory",
    "ConversationTurn",
    "Curated",
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

_HOMES = {
    "ConversationContext": "layers.state",
    "ConversationHistory": "layers.models",
    "ConversationTurn": "layers.models",
    "Curated": "layers.curation",
    "CurationSummary": "layers.models",
    "EntityContext": "layers.models",
    "EntitySnapshot": "layers.models",
    "Layers": "layers.session",
    "NEEDS": "layers.visibility",
    "Need": "layers.visibility",
    "PendingState": "layers.models",
    "ReasoningTrace": "layers.models",
    "SessionIdRegistry": "layers.registry",
    "StepSummary": "layers.models",
    "Turn": "layers.session",
    "TurnExecutionSummary": "layers.models",
    "TurnState": "layers.turn",
    "build_act_context": "layers.builders",
    "build_act_entity_context": "layers.builders",
    "build_reply_context": "layers.builders",
    "build_think_context": "layers.builders",
    "build_understand_context": "layers.builders",
    "conversation_of": "layers.state",
    "curate": "layers.curation",
    "format_conversation": "layers.conversation",
    "format_conversation_for_prompt": "layers.conversation",
    "format_entity_context": "layers.entities",
    "format_reasoning": "layers.reasoning",
    "format_reasoning_for_prompt": "layers.reasoning",
    "from_json": "layers.state",
    "get_conversation_history": "layers.conversation",
    "get_conversation_with_engagement": "layers.conversation",
    "get_current_curation": "layers.reasoning",
    "get_current_turn_steps": "layers.reasoning",
    "get_entity_context": "layers.entities",
    "get_execution_outcomes": "layers.reasoning",
    "get_own_decision_history": "layers.reasoning",
    "get_reasoning_trace": "layers.reasoning",
    "get_recent_conversation": "layers.conversation",
    "layer_prompt": "layers.context",
    "layer_texts": "layers.builders",
    "summarise_turn": "layers.retention",
    "to_json": "layers.state",
}

__getattr__, __dir__ = public(__name__, _HOMES)
