"""Typed memory: a persona and a human block with fields, how they are rotated into the archive, and what manages them."""

from ricordo.memory.typed.agent import BaseAgent
from ricordo.memory.typed.blocks import HumanBlock, PersonaBlock, SessionState
from ricordo.memory.typed.client import MemoryClient
from ricordo.memory.typed.manager import MemoryManager, MemorySummary
from ricordo.memory.typed.personas import CODING_ASSISTANT_PERSONA, DEFAULT_PERSONA, RESEARCH_ASSISTANT_PERSONA
from ricordo.memory.typed.rotation import (
    AdaptiveRotation,
    AggressiveRotation,
    ContextMetrics,
    PreservativeRotation,
    RotationStrategy,
)

__all__ = [
    "CODING_ASSISTANT_PERSONA",
    "DEFAULT_PERSONA",
    "RESEARCH_ASSISTANT_PERSONA",
    "AdaptiveRotation",
    "AggressiveRotation",
    "BaseAgent",
    "ContextMetrics",
    "HumanBlock",
    "MemoryClient",
    "MemoryManager",
    "MemorySummary",
    "PersonaBlock",
    "PreservativeRotation",
    "RotationStrategy",
    "SessionState",
]
