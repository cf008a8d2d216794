"""Which tool protocol a model speaks, told by its chat template. Owns the list of protocols; never a reply.

    qwen_xml   <tool_call> <function=NAME> <parameter=KEY> value ...       Qwen3-Coder, Qwen3.5, 3.6, 3.8
    hermes     <tool_call> {"name": ..., "arguments": {...}}               Qwen2.5, Qwen3, and many others
    muse       <atem:function_calls> <atem:invoke name="NAME"> ...         Muse Glimmer

A template that shows tools in a form that is none of these, or shows none at all, is given them in words of our own
(generic_tools.py), in Hermes' form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparkinfer.text.tool_protocols.call_parser import CallParser
from sparkinfer.text.tool_protocols.call_writer import ToolOffer
from sparkinfer.text.tool_protocols.hermes import HermesParser
from sparkinfer.text.tool_protocols.markup import MUSE_TAGS, QWEN_TAGS, MarkupParser


class ToolProtocol(StrEnum):
    """How a model writes its calls."""

    QWEN_XML = "qwen_xml"
    HERMES = "hermes"
    MUSE = "muse"


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """A protocol, and whether the template explains it to the model."""

    protocol: ToolProtocol
    is_native: bool                   # False: tools, calls and results are put into the messages' text


def tool_dialect(template: str | None, override: str = "auto") -> ToolDialect:
    """The dialect of a template's source; `override` names a protocol that is to be used instead."""
    native = _native(template or "")
    if override == "auto":
        return ToolDialect(native or ToolProtocol.HERMES, native is not None)
    protocol = ToolProtocol(override)
    return ToolDialect(protocol, protocol is native)


def call_parser(protocol: ToolProtocol, offer: ToolOffer, *, calls_come_first: bool) -> CallParser:
    """The reader of one choice's calls."""
    if protocol is ToolProtocol.HERMES:
        return HermesParser(offer, calls_come_first=calls_come_first)
    tags = QWEN_TAGS if protocol is ToolProtocol.QWEN_XML else MUSE_TAGS
    return MarkupParser(tags, offer, calls_come_first=calls_come_first)


def _native(template: str) -> ToolProtocol | None:
    if "tools" not in template:
        return None
    if "<function=" in template and "<tool_call>" in template:
        return ToolProtocol.QWEN_XML
    if MUSE_TAGS.open in template:
        return ToolProtocol.MUSE
    if "<tool_call>" in template and "arguments" in template:
        return ToolProtocol.HERMES
    return None
