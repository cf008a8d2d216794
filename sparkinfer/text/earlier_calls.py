"""Calls that earlier turns of a conversation made: their arguments are what the functions take. Knows no answer."""

from __future__ import annotations

import json
from typing import Any

from sparkinfer.errors import RequestError
from sparkinfer.grammar.checker import first_violation
from sparkinfer.grammar.grammar_spec import CallCheck
from sparkinfer.grammar.json_schema import json_rule
from sparkinfer.request import ChatPrompt, Prompt


def earlier_calls(prompt: Prompt) -> CallCheck | None:
    """The calls of `prompt` with the functions that it offers; None when there are none, or none are to be checked."""
    if not isinstance(prompt, ChatPrompt) or not prompt.tools or not prompt.checks_earlier_calls:
        return None
    numbers = {tool.name: i for i, tool in enumerate(prompt.tools)}
    calls = tuple(
        (f"messages[{i}].tool_calls[{k}].function.arguments", numbers[call.name], call.arguments)
        for i, message in enumerate(prompt.messages)
        for k, call in enumerate(message.tool_calls)
        if call.name in numbers
    )
    return CallCheck(tuple(tool.parameters for tool in prompt.tools), calls) if calls else None


def check_calls(check: CallCheck) -> None:
    """Raises RequestError 400 that names the first call whose arguments are wrong. May take as long as schemas can."""
    schemas = {number: json.loads(check.schemas[number]) for _, number, _ in check.calls}
    for number, schema in schemas.items():
        json_rule(schema, f"tools[{number}].function.parameters")  # refuses what is no schema
    for path, number, arguments in check.calls:
        problem = first_violation(schemas[number], _value(path, arguments))
        if problem is not None:
            raise RequestError(400, f"{path}: {problem}", param=path)


def _value(path: str, arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError as error:
        reason = str(error).partition(";")[0]
        raise RequestError(400, f"{path} is not valid JSON: {reason}", param=path) from error
