"""The document of GET /openapi.json: every route with what it takes and gives. Knows no handler."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparkinfer.api.openapi_replies import REPLIES
from sparkinfer.api.openapi_requests import REQUESTS, Schema, ref

OPENAPI_VERSION = "3.1.0"


class Operation(NamedTuple):
    """One route. request, reply and event are names of schemas."""

    method: str
    path: str
    summary: str
    reply: str = ""          # "": plain text
    request: str = ""
    event: str = ""          # of the stream that is sent instead when the body says "stream": true
    needs_key: bool = False
    errors: tuple[int, ...] = ()


_GENERATION_ERRORS = (400, 401, 408, 413, 415, 429, 500, 503, 504)
_PROMPT_ERRORS = (400, 401, 408, 413, 415, 500, 503)

OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer a conversation", "ChatCompletion", "ChatRequest",
              "ChatCompletionChunk", True, _GENERATION_ERRORS),
    Operation("post", "/v1/completions", "Continue a text", "Completion", "CompletionRequest",
              "Completion", True, _GENERATION_ERRORS),
    Operation("post", "/v1/score", "The log-probabilities of a given text", "Score", "ScoreRequest",
              needs_key=True, errors=_GENERATION_ERRORS),
    Operation("post", "/v1/tokenize", "Count the tokens of a prompt", "Tokenized", "TokenizeRequest",
              needs_key=True, errors=_PROMPT_ERRORS),
    Operation("post", "/v1/detokenize", "The text of token ids", "Detokenized", "DetokenizeRequest",
              needs_key=True, errors=_PROMPT_ERRORS),
    Operation("post", "/v1/apply-template", "The text that the model reads for a conversation", "RenderedPrompt",
              "TemplateRequest", needs_key=True, errors=_PROMPT_ERRORS),
    Operation("get", "/v1/models", "The one model that is served", "Models", errors=(503,)),
    Operation("get", "/v1/models/{id}", "The same, alone", "Model", errors=(404, 503)),
    Operation("get", "/v1/info", "The limits that hold now", "Info", needs_key=True, errors=(401, 503)),
    Operation("get", "/v1/capacity", "How busy the engine is", "Capacity"),
    Operation("get", "/health", "This process answers", "Status"),
    Operation("get", "/ready", "A request would be taken", "Status", errors=(503,)),
    Operation("get", "/metrics", "Prometheus metrics"),
    Operation("get", "/openapi.json", "This document", "Document"),
)  # fmt: skip


def openapi_document(version: str, path_prefix: str, has_keys: bool) -> dict[str, Any]:
    """version: of the routes; path_prefix: below which all of them stand; has_keys: a key is asked for."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, has_keys)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "SparkInfer", "version": version},
        "servers": [{"url": path_prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**REQUESTS, **REPLIES, "Document": {"type": "object"}},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(operation: Operation, has_keys: bool) -> dict[str, Any]:
    content: dict[str, Schema] = {}
    if operation.reply:
        content["application/json"] = {"schema": ref(operation.reply)}
    else:
        content["text/plain"] = {"schema": {"type": "string"}}
    if operation.event:
        events = {"anyOf": [ref(operation.event), ref("Error")]}  # the data of each, before a last one of [DONE]
        content["text/event-stream"] = {"schema": {"type": "string", "x-events": events}}
    responses: dict[str, Any] = {"200": {"description": operation.summary, "content": content}}
    for status in operation.errors:
        responses[str(status)] = _ERROR
    document: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if operation.request:
        document["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": ref(operation.request)}},
        }  # fmt: skip
    if "{id}" in operation.path:
        document["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    document["security"] = [{"bearer": []}, {"key": []}] if operation.needs_key and has_keys else []
    return document


_ERROR = {"description": "Error", "content": {"application/json": {"schema": ref("Error")}}}
