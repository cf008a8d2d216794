"""How the answer to a request is read: what may be called in it, and what form it must have.

Knows requests and protocols; never the prompt's text or a token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sparkinfer.grammar.checker import first_violation
from sparkinfer.request import (
    ChatPrompt,
    ChoiceFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    Request,
)
from sparkinfer.text.content_filter import ContentOptions
from sparkinfer.text.tool_protocols.call_writer import OfferedTool, ToolOffer, strict_json
from sparkinfer.text.tool_protocols.protocol import ToolProtocol


def content_options(request: Request, protocol: ToolProtocol) -> ContentOptions:
    """For the content of an answer to `request`, by a model that speaks `protocol`."""
    prompt, output_format = request.prompt, request.output_format
    offer = None
    if isinstance(prompt, ChatPrompt) and prompt.tools:
        tools = tuple(OfferedTool(tool.name, json.loads(tool.parameters)) for tool in prompt.tools)
        offer = ToolOffer(tools, request.tool_policy, first_violation)
    must_call = offer is not None and request.tool_policy.choice == "required"
    return ContentOptions(
        stop=request.stop,
        offer=offer,
        protocol=protocol,
        has_format=output_format is not None,
        check=_check(output_format) if output_format is not None else _no_call if must_call else None,
    )


def _check(output_format: OutputFormat) -> Callable[[str], str | None] | None:
    """What finds fault with a complete answer; None for forms that nothing but a grammar can tell."""
    match output_format:
        case JsonObjectFormat():
            return _object_problem
        case JsonSchemaFormat():
            schema = json.loads(output_format.schema)
            return lambda text: _schema_problem(schema, text)
        case ChoiceFormat():
            choices = output_format.choices
            return lambda text: None if text in choices else "it is none of the choices"
    return None


def _no_call(_: str) -> str:
    """What is wrong with any answer without a call, where there must be one; text before it waits for it."""
    return "it calls no function"


def _object_problem(text: str) -> str | None:
    try:
        return None if isinstance(strict_json(text), dict) else "it is no JSON object"
    except ValueError as error:
        return f"it is not JSON: {error}"


def _schema_problem(schema: Any, text: str) -> str | None:
    try:
        return first_violation(schema, strict_json(text))
    except ValueError as error:
        return f"it is not JSON: {error}"
