"""Everything that the grammar of an answer depends on: the key under which a compiled one is kept. Plain values."""

from __future__ import annotations

import msgspec

from sparkinfer.request import OutputFormat, Tool, ToolPolicy


class CallCheck(msgspec.Struct, frozen=True, tag="calls"):
    """Calls of earlier turns, to be held against what the functions take."""

    schemas: tuple[str, ...]          # JSON Schemas of the functions' arguments
    calls: tuple[tuple[str, int, str], ...]  # path in the request, number of the schema, JSON text of the arguments


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="grammar"):
    """What one answer has to obey; crosses to the process that builds grammars as msgpack."""

    special_tokens: tuple[str, ...]   # texts of the model's special tokens, in a fixed order
    protocol: str = ""                # name of the tool protocol; "": the model calls no tools
    can_reason: bool = False          # the model marks its reasoning with <think>
    starts_in_reasoning: bool = False  # the prompt has opened a section of reasoning
    tools: tuple[Tool, ...] = ()
    policy: ToolPolicy = ToolPolicy()
    output_format: OutputFormat | None = None
