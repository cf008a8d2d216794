"""The OpenAPI document's part on the APIs beside OpenAI's completions: routes and schemas.

What a field of another API means is its own documentation's business: here stands which fields there are, and which
are needed. Routes that only say what is not done here are left out.
"""

from __future__ import annotations

from sparkinfer.api.openapi_operation import GENERATION_ERRORS, PROMPT_ERRORS, Operation
from sparkinfer.api.openapi_requests import BOOLEAN, OBJECT, STRING, Schema, array, body, integer, optional
from sparkinfer.api.sampling import INT32_MAX

_ANTHROPIC = "AnthropicError"
_OLLAMA = "OllamaError"
_LM_STUDIO = "LmStudioError"

SURFACE_OPERATIONS = (
    Operation("post", "/v1/messages", "Anthropic: answer a conversation", "AnthropicMessage", "AnthropicRequest",
              "AnthropicEvent", True, GENERATION_ERRORS, _ANTHROPIC),
    Operation("post", "/v1/messages/count_tokens", "Anthropic: count the tokens of a conversation",
              "AnthropicTokens", "AnthropicCountRequest", needs_key=True, errors=PROMPT_ERRORS, error=_ANTHROPIC),
    Operation("post", "/v1/responses", "OpenAI Responses: answer", "Response", "ResponsesRequest",
              "ResponseEvent", True, GENERATION_ERRORS),
    Operation("post", "/v1/responses/input_tokens", "OpenAI Responses: count the tokens of an input",
              "ResponseTokens", "ResponsesRequest", needs_key=True, errors=PROMPT_ERRORS),
    Operation("get", "/v1/responses/{id}", "OpenAI Responses: a response that was stored", "Response",
              needs_key=True, errors=(400, 401, 404, 503)),
    Operation("delete", "/v1/responses/{id}", "OpenAI Responses: forget it", "ResponseDeleted",
              needs_key=True, errors=(401, 404, 503)),
    Operation("get", "/v1/responses/{id}/input_items", "OpenAI Responses: what led to it", "ResponseItems",
              needs_key=True, errors=(400, 401, 404, 503)),
    Operation("get", "/", "Ollama: is it running?"),
    Operation("get", "/api/version", "Ollama: how new is it?", "OllamaVersion"),
    Operation("get", "/api/tags", "Ollama: the models", "OllamaModels", needs_key=True, errors=(401, 503),
              error=_OLLAMA),
    Operation("get", "/api/ps", "Ollama: the models that are loaded", "OllamaModels", needs_key=True,
              errors=(401, 503), error=_OLLAMA),
    Operation("post", "/api/show", "Ollama: a model's facts", "OllamaModel", "OllamaShowRequest", needs_key=True,
              errors=(*PROMPT_ERRORS, 404), error=_OLLAMA),
    Operation("post", "/api/chat", "Ollama: answer a conversation", "OllamaReply", "OllamaChatRequest",
              "OllamaReply", True, (*GENERATION_ERRORS, 404), _OLLAMA, "application/x-ndjson"),
    Operation("post", "/api/generate", "Ollama: answer a prompt", "OllamaReply", "OllamaGenerateRequest",
              "OllamaReply", True, (*GENERATION_ERRORS, 404), _OLLAMA, "application/x-ndjson"),
    Operation("get", "/lmstudio-greeting", "LM Studio: is it here?", "LmStudioGreeting"),
    Operation("get", "/api/v0/models", "LM Studio: the models", "LmStudioModels", needs_key=True,
              errors=(401, 503), error=_LM_STUDIO),
    Operation("get", "/api/v0/models/{id}", "LM Studio: a model", "LmStudioModel", needs_key=True,
              errors=(401, 404, 503), error=_LM_STUDIO),
    Operation("post", "/api/v0/chat/completions", "LM Studio: answer a conversation", "LmStudioCompletion",
              "LmStudioV0ChatRequest", "LmStudioChunk", True, (*GENERATION_ERRORS, 404), _LM_STUDIO),
    Operation("post", "/api/v0/completions", "LM Studio: continue a text", "LmStudioCompletion",
              "LmStudioV0Request", "LmStudioChunk", True, (*GENERATION_ERRORS, 404), _LM_STUDIO),
    Operation("get", "/api/v1/models", "LM Studio: the models", "LmStudioV1Models", needs_key=True,
              errors=(401, 503), error=_LM_STUDIO),
    Operation("post", "/api/v1/chat", "LM Studio: answer a message", "LmStudioChat", "LmStudioChatRequest",
              "LmStudioEvent", True, (*GENERATION_ERRORS, 404), _LM_STUDIO),
)  # fmt: skip


def _reply(*required: str, **properties: Schema) -> Schema:
    """An object with at least these keys."""
    names = {name: properties.get(name, {}) for name in required}
    return {"type": "object", "properties": {**names, **properties}, "required": list(required)}


_TEXT_OR_PARTS: Schema = {"anyOf": [STRING, array(OBJECT)]}
_ERROR_OBJECT = _reply("type", "message", type=STRING, message=STRING)
_MESSAGES: Schema = array(OBJECT, 1)
_ANTHROPIC_BODY: dict[str, Schema] = {
    "messages": _MESSAGES,
    "system": _TEXT_OR_PARTS,
    "tools": array(OBJECT),
    "tool_choice": OBJECT,
    "thinking": OBJECT,
    "output_config": OBJECT,
}
_OLLAMA_BODY: dict[str, Schema] = {
    "model": {"type": "string", "minLength": 1},
    "stream": BOOLEAN,
    "format": {"anyOf": [{"type": "string", "enum": ["", "json"]}, OBJECT]},
    "options": OBJECT,
    "think": {"anyOf": [BOOLEAN, {"type": "string", "enum": ["", "low", "medium", "high", "max"]}]},
    "keep_alive": {},
}

SURFACE_SCHEMAS: dict[str, Schema] = {
    "AnthropicError": _reply("type", "error", error=_ERROR_OBJECT),
    "AnthropicCountRequest": body(_ANTHROPIC_BODY, "messages"),
    "AnthropicRequest": body(
        {
            **_ANTHROPIC_BODY,
            "model": {"type": "string", "minLength": 1},
            "max_tokens": integer(1, INT32_MAX),
            "stop_sequences": array(STRING),
            "stream": BOOLEAN,
        },
        "model", "max_tokens", "messages",
    ),
    "AnthropicMessage": _reply("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage",
                               content=array(OBJECT)),
    "AnthropicEvent": _reply("type", type=STRING),
    "AnthropicTokens": _reply("input_tokens", input_tokens=integer(0, INT32_MAX)),
    "ResponsesRequest": body(
        {
            "input": _TEXT_OR_PARTS,
            "instructions": STRING,
            "model": STRING,
            "tools": array(OBJECT),
            "tool_choice": {"anyOf": [{"type": "string", "enum": ["auto", "none", "required"]}, OBJECT]},
            "parallel_tool_calls": BOOLEAN,
            "max_output_tokens": integer(1, INT32_MAX),
            "text": OBJECT,
            "reasoning": OBJECT,
            "previous_response_id": STRING,
            "metadata": OBJECT,
            "store": BOOLEAN,
            "stream": BOOLEAN,
        }
    ),
    "Response": _reply("id", "object", "status", "output", output=array(OBJECT), usage=optional(OBJECT)),
    "ResponseEvent": _reply("type", "sequence_number", type=STRING),
    "ResponseTokens": _reply("object", "input_tokens", input_tokens=integer(0, INT32_MAX)),
    "ResponseDeleted": _reply("id", "object", "deleted"),
    "ResponseItems": _reply("object", "data", "first_id", "last_id", "has_more", data=array(OBJECT)),
    "OllamaError": _reply("error", error=STRING),
    "OllamaVersion": _reply("version", version={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"}),
    "OllamaModels": _reply("models", models=array(_reply("name", "model", "size", "digest", "details"))),
    "OllamaModel": _reply("details", "model_info", "capabilities", model_info=OBJECT, capabilities=array(STRING)),
    "OllamaShowRequest": body({"model": STRING, "name": STRING}),
    "OllamaChatRequest": body({**_OLLAMA_BODY, "messages": array(OBJECT), "tools": array(OBJECT)}, "model"),
    "OllamaGenerateRequest": body({**_OLLAMA_BODY, "prompt": STRING, "system": STRING, "raw": BOOLEAN}, "model"),
    "OllamaReply": _reply("model", "created_at", "done", done=BOOLEAN),
    "LmStudioGreeting": _reply("lmstudio", lmstudio=BOOLEAN),
    "LmStudioError": _reply("error", error=_ERROR_OBJECT),
    "LmStudioModel": _reply("id", "object", "type", "publisher", "arch", "quantization", "state",
                            "max_context_length"),
    "LmStudioModels": _reply("object", "data", data=array(OBJECT, 1, 1)),
    "LmStudioV1Models": _reply("models", models=array(OBJECT, 1, 1)),
    "LmStudioV0ChatRequest": body({"messages": _MESSAGES, "model": STRING, "stream": BOOLEAN}, "messages"),
    "LmStudioV0Request": body({"prompt": {}, "model": STRING, "stream": BOOLEAN}, "prompt"),
    "LmStudioCompletion": _reply("id", "object", "choices", "usage", "stats", "model_info", "runtime"),
    "LmStudioChunk": _reply("id", "object", "choices", choices=array(OBJECT)),
    "LmStudioChatRequest": body(
        {
            "model": {"type": "string", "minLength": 1},
            "input": _TEXT_OR_PARTS,
            "system_prompt": STRING,
            "stream": BOOLEAN,
            "store": BOOLEAN,
            "reasoning": {"type": "string", "enum": ["off", "on", "low", "medium", "high"]},
            "previous_response_id": STRING,
        },
        "model", "input",
    ),
    "LmStudioChat": _reply("model_instance_id", "output", "stats", output=array(OBJECT)),
    "LmStudioEvent": _reply("type", type=STRING),
}  # fmt: skip
