"""The spellings of "think, and how much" that clients use, folded into the template's own keyword arguments.

Knows no model: whether a template looks at enable_thinking or reasoning_effort is the template's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sparkinfer.api.sampling import INT32_MAX
from sparkinfer.api.schema import Object, fail, read_bool, read_choice, read_int, read_object, reject_unknown

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_RESERVED = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
)
_REASONING_KEYS = ("effort", "enabled", "max_tokens", "exclude", "summary", "generate_summary")
MAX_KWARGS = 32


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the template is told, and whether the client wants to see the reasoning."""

    template_kwargs: dict[str, Any]
    exclude_reasoning: bool


def read_thinking(body: Object) -> Thinking:
    """chat_template_kwargs, enable_thinking, reasoning_effort and reasoning{effort, enabled, max_tokens, exclude}.

    enable_thinking at the top wins over chat_template_kwargs; any effort but "none" switches thinking on where
    neither says otherwise; effort "none" and reasoning.enabled false switch it off whatever else is said.
    """
    kwargs = _read_template_kwargs(body)
    if body.get("enable_thinking") is not None:
        kwargs["enable_thinking"] = read_bool(body, "enable_thinking", True)
    reasoning = read_object(body, "reasoning") or {}
    reject_unknown(reasoning, _REASONING_KEYS, "reasoning")
    effort = read_choice(reasoning, "effort", EFFORTS, "reasoning") or read_choice(body, "reasoning_effort", EFFORTS)
    if effort is None and read_int(reasoning, "max_tokens", 1, INT32_MAX, "reasoning") is not None:
        effort = "medium"
    enabled = reasoning.get("enabled")
    if enabled is not None:
        enabled = read_bool(reasoning, "enabled", True, "reasoning")
    if enabled is False or effort == "none":
        kwargs["enable_thinking"] = False
    elif effort is not None or enabled:
        kwargs.setdefault("enable_thinking", True)
    if effort is not None and effort != "none" and enabled is not False:
        kwargs["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return Thinking(kwargs, read_bool(reasoning, "exclude", False, "reasoning"))


def _read_template_kwargs(body: Object) -> dict[str, Any]:
    kwargs = dict(read_object(body, "chat_template_kwargs") or {})
    if len(kwargs) > MAX_KWARGS:
        fail("chat_template_kwargs", f"must have at most {MAX_KWARGS} keys, got {len(kwargs)}")
    for key in _RESERVED:
        if key in kwargs:
            fail(f"chat_template_kwargs.{key}", "is set by the server and cannot be given")
    for key in ("enable_thinking", "preserve_thinking"):
        if kwargs.get(key) is None:
            kwargs.pop(key, None)
        else:
            read_bool(kwargs, key, True, "chat_template_kwargs")
    try:
        msgspec.msgpack.encode(kwargs)
    except OverflowError:
        fail("chat_template_kwargs", "integers must fit 64 bits")
    return kwargs
