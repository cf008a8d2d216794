"""JSON schemas of the request bodies, made of the tables that the parsers read. A null counts as absent everywhere.

A body that its schema refuses gets 400; one that it admits may still be refused for what a schema cannot say.
"""

from __future__ import annotations

from typing import Any

from sparkinfer.api.completions import MAX_PROMPTS
from sparkinfer.api.messages import MAX_MESSAGES, MAX_TOOL_CALLS, ROLES
from sparkinfer.api.models import MAX_STOPS, MAX_TOP_LOGPROBS
from sparkinfer.api.response_format import FORMAT_TYPES
from sparkinfer.api.response_format import MAX_CHOICES as MAX_FORMAT_CHOICES
from sparkinfer.api.sampling import (
    BIAS_RANGE,
    FLOAT_RANGES,
    INT32_MAX,
    INT_RANGES,
    MAX_LOGIT_BIAS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
)
from sparkinfer.api.template_kwargs import EFFORTS, MAX_KWARGS
from sparkinfer.api.tools import CHOICES, MAX_NAME_CHARACTERS, MAX_TOOLS, NAME_PATTERN

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """A schema of the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema, low: int = 0, high: int | None = None) -> Schema:
    """An array of low to high items."""
    bounds = ({"minItems": low} if low else {}) | ({"maxItems": high} if high is not None else {})
    return {"type": "array", "items": items, **bounds}


def _one_or_more(schema: Schema) -> Schema:
    """One, or a list of several."""
    return {"anyOf": [schema, array(schema, 1, MAX_PROMPTS)]}


def integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def optional(schema: Schema) -> Schema:
    """`schema` or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def body(properties: dict[str, Schema], *required: str) -> Schema:
    """An object whose other keys are ignored; what is not required may be null."""
    return {
        "type": "object",
        "properties": {key: value if key in required else optional(value) for key, value in properties.items()},
        "required": list(required),
    }


def closed(properties: dict[str, Schema], *required: str) -> Schema:
    """As `body`, without other keys."""
    return body(properties, *required) | {"additionalProperties": False}


TOKEN_ID = integer(0, INT32_MAX)
STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}

SAMPLING: dict[str, Schema] = {
    **{key: number(*bounds) for key, bounds in FLOAT_RANGES.items()},
    **{key: integer(*bounds) for key, bounds in INT_RANGES.items()},
    "stop": {"anyOf": [STOP, array(STOP, high=MAX_STOPS)]},
    "stop_token_ids": array(TOKEN_ID, high=MAX_STOP_TOKEN_IDS),
    "ignore_eos": BOOLEAN,
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": number(*BIAS_RANGE),
        "maxProperties": MAX_LOGIT_BIAS,
    },
    "stream": BOOLEAN,
    "stream_options": body({"include_usage": BOOLEAN}),
    "model": STRING,
    "user": STRING,
}

TEXT: Schema = {"type": "string", "minLength": 1}
GUIDES: dict[str, Schema] = {
    "json": {"anyOf": [OBJECT, STRING]},
    "json_object": BOOLEAN,
    "regex": TEXT,
    "grammar": TEXT,
    "choice": array(TEXT, 1, MAX_FORMAT_CHOICES),
}
OUTPUT_FORMAT: dict[str, Schema] = {
    "response_format": ref("ResponseFormat"),
    "structured_outputs": closed(GUIDES),
    **{f"guided_{key}": schema for key, schema in GUIDES.items()},
}

TEMPLATE: dict[str, Schema] = {
    "enable_thinking": BOOLEAN,
    "reasoning_effort": {"type": "string", "enum": list(EFFORTS)},
    "reasoning": body(
        {
            "effort": {"type": "string", "enum": list(EFFORTS)},
            "enabled": BOOLEAN,
            "max_tokens": integer(1, INT32_MAX),
            "exclude": BOOLEAN,
        }
    ),
    "chat_template_kwargs": {"type": "object", "maxProperties": MAX_KWARGS},
    "add_generation_prompt": BOOLEAN,
    "continue_final_message": BOOLEAN,
    "tools": array(ref("Tool"), high=MAX_TOOLS),
    "tool_choice": {
        "anyOf": [{"type": "string", "enum": list(CHOICES)}, ref("FunctionChoice"), ref("AllowedTools")]
    },
    "parallel_tool_calls": BOOLEAN,
    **OUTPUT_FORMAT,
}

PROMPT: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        array(TOKEN_ID, 1),
        array({"type": "string", "minLength": 1}, 1, MAX_PROMPTS),
        array(array(TOKEN_ID, 1), 1, MAX_PROMPTS),
    ]
}

def _message(roles: list[str], properties: dict[str, Schema], *required: str) -> Schema:
    """A message of one of `roles`; other keys may only be null, as SDKs send back what they do not use."""
    role: Schema = {"type": "string", "enum": roles}
    return body({"role": role, "name": STRING, **properties}, "role", *required) | {
        "additionalProperties": {"type": "null"}
    }


def _format(kind: str) -> Schema:
    """A response_format of one type."""
    properties: dict[str, Schema] = {"type": {"type": "string", "const": kind}}
    if kind in ("text", "json_object"):
        return closed(properties, "type")
    json_schema = closed(
        {"name": TEXT, "schema": OBJECT, "strict": BOOLEAN, "description": STRING}, "name", "schema"
    )
    return closed(properties | {kind: GUIDES.get(kind, json_schema)}, "type", kind)


_NAME: Schema = {
    "type": "string", "pattern": f"^(?:{NAME_PATTERN})$", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS,
}  # fmt: skip
_CONTENT: Schema = {"anyOf": [STRING, array(ref("ContentPart"), 1)]}
_OTHERS = [role for role in ROLES if role not in ("assistant", "tool")]
_SYSTEM_OR_USER = _message(_OTHERS, {"content": _CONTENT}, "content")
_ASSISTANT = _message(
    ["assistant"],
    {
        "content": _CONTENT,
        "refusal": STRING,
        "reasoning": STRING,
        "reasoning_content": STRING,
        "tool_calls": array(ref("ToolCall"), high=MAX_TOOL_CALLS),
        "annotations": {},
        "audio": {},
        "function_call": {},
    },
)
_TOOL = _message(
    ["tool"], {"content": _CONTENT, "tool_call_id": {"type": "string", "minLength": 1}}, "content", "tool_call_id"
)

def _of_chat_or_prompt(prompt: Schema, others: dict[str, Schema]) -> Schema:
    """A body of either kind, with `others`; what concerns chats is not looked at beside a prompt."""
    messages = array(ref("Message"), 1, MAX_MESSAGES)
    chat = body({"messages": messages, "prompt": {"type": "null"}, **TEMPLATE, **others}, "messages")
    return {"anyOf": [chat, body({"prompt": prompt, "messages": {"type": "null"}, **others}, "prompt")]}


REQUESTS: dict[str, Schema] = {
    "Tool": closed({"type": {"type": "string", "const": "function"}, "function": ref("Function")}, "type", "function"),
    "Function": closed(
        {"name": _NAME, "description": STRING, "parameters": OBJECT, "strict": BOOLEAN}, "name",
    ),
    "FunctionChoice": closed(
        {"type": {"type": "string", "const": "function"}, "function": closed({"name": STRING}, "name")},
        "type", "function",
    ),
    "AllowedTools": closed(
        {
            "type": {"type": "string", "const": "allowed_tools"},
            "allowed_tools": closed(
                {"mode": {"type": "string", "enum": ["auto", "required"]}, "tools": array(ref("FunctionChoice"), 1)},
                "mode", "tools",
            ),
        },
        "type", "allowed_tools",
    ),
    "ResponseFormat": {"oneOf": [_format(kind) for kind in FORMAT_TYPES]},
    "ContentPart": body({"type": STRING, "text": STRING}, "type"),
    "ToolCall": closed(
        {
            "id": {"type": "string", "minLength": 1},
            "type": {"type": "string", "enum": ["function"]},
            "index": {},
            "function": closed(
                {"name": {"type": "string", "minLength": 1}, "arguments": {"anyOf": [STRING, OBJECT]}},
                "name", "arguments",
            ),
        },
        "id", "function",
    ),
    "Message": {"oneOf": [_SYSTEM_OR_USER, _ASSISTANT, _TOOL]},
    "ChatRequest": body(
        {
            "messages": array(ref("Message"), 1, MAX_MESSAGES),
            **SAMPLING,
            **TEMPLATE,
            "logprobs": BOOLEAN,
            "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
            "metadata": OBJECT,
            "store": BOOLEAN,
            "service_tier": STRING,
        },
        "messages",
    ),
    "CompletionRequest": body(
        {
            "prompt": PROMPT,
            **SAMPLING,
            **OUTPUT_FORMAT,
            "max_tokens": integer(0, INT32_MAX),  # 0 only with echo
            "echo": BOOLEAN,
            "logprobs": integer(0, MAX_TOP_LOGPROBS),
            "best_of": integer(1, 1),
            "suffix": {"type": "null"},
        },
        "prompt",
    ),
    "ScoreRequest": _of_chat_or_prompt(
        {"anyOf": [{"type": "string", "minLength": 1}, array(TOKEN_ID, 1)]},
        {
            "completion": _one_or_more({"type": "string", "minLength": 1}),
            "completion_token_ids": _one_or_more(array(TOKEN_ID, 1)),
            "prompt_only": BOOLEAN,
            "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
            "priority": integer(*INT_RANGES["priority"]),
            "stream": {"type": "boolean", "enum": [False]},
            "model": STRING,
            "user": STRING,
        },
    ),
    "TokenizeRequest": _of_chat_or_prompt(PROMPT, {"return_token_ids": BOOLEAN, "return_pieces": BOOLEAN}),
    "TemplateRequest": body({"messages": array(ref("Message"), 1, MAX_MESSAGES), **TEMPLATE}, "messages"),
    "DetokenizeRequest": body(
        {"token_ids": array(TOKEN_ID), "tokens": array(TOKEN_ID), "skip_special_tokens": BOOLEAN}
    ),
}  # fmt: skip
