"""The document of GET /openapi.json: every route with what it takes and gives. Knows no handler."""

from __future__ import annotations

from typing import Any

from sparkinfer.api.openapi_operation import GENERATION_ERRORS, PROMPT_ERRORS, Operation
from sparkinfer.api.openapi_replies import REPLIES
from sparkinfer.api.openapi_requests import REQUESTS, Schema, ref
from sparkinfer.api.openapi_surfaces import SURFACE_OPERATIONS, SURFACE_SCHEMAS

OPENAPI_VERSION = "3.1.0"


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer a conversation", "ChatCompletion", "ChatRequest",
              "ChatCompletionChunk", True, GENERATION_ERRORS),
    Operation("post", "/v1/completions", "Continue a text", "Completion", "CompletionRequest",
              "Completion", True, GENERATION_ERRORS),
    Operation("post", "/v1/score", "The log-probabilities of a given text", "Score", "ScoreRequest",
              needs_key=True, errors=GENERATION_ERRORS),
    Operation("post", "/v1/tokenize", "Count the tokens of a prompt", "Tokenized", "TokenizeRequest",
              needs_key=True, errors=PROMPT_ERRORS),
    Operation("post", "/v1/detokenize", "The text of token ids", "Detokenized", "DetokenizeRequest",
              needs_key=True, errors=PROMPT_ERRORS),
    Operation("post", "/v1/apply-template", "The text that the model reads for a conversation", "RenderedPrompt",
              "TemplateRequest", needs_key=True, errors=PROMPT_ERRORS),
    Operation("get", "/v1/models", "The one model that is served", "Models", errors=(503,)),
    Operation("get", "/v1/models/{id}", "The same, alone", "Model", errors=(404, 503)),
    Operation("get", "/v1/info", "The limits that hold now", "Info", needs_key=True, errors=(401, 503)),
    Operation("get", "/v1/capacity", "How busy the engine is", "Capacity"),
    Operation("get", "/health", "Alive, and the engine with it", "Status", errors=(503,), error="Unhealthy"),
    Operation("get", "/ready", "A request would be taken", "Status", errors=(503,)),
    Operation("get", "/metrics", "Prometheus metrics"),
    Operation("get", "/openapi.json", "This document", "Document"),
)  # fmt: skip


def openapi_document(version: str, path_prefix: str, has_keys: bool) -> dict[str, Any]:
    """version: of the routes; path_prefix: below which all of them stand; has_keys: a key is asked for."""
    paths: dict[str, Any] = {}
    for operation in (*OPERATIONS, *SURFACE_OPERATIONS):
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, has_keys)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "SparkInfer", "version": version},
        "servers": [{"url": path_prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**REQUESTS, **REPLIES, **SURFACE_SCHEMAS, "Document": {"type": "object"}},
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
        events = {"anyOf": [ref(operation.event), ref(operation.error)]}  # the data of each, but for a last [DONE]
        content[operation.stream_type] = {"schema": {"type": "string", "x-events": events}}
    responses: dict[str, Any] = {"200": {"description": operation.summary, "content": content}}
    for status in operation.errors:
        schema = {"application/json": {"schema": ref(operation.error)}}
        responses[str(status)] = {"description": "Error", "content": schema}
    document: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if operation.request:
        document["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": ref(operation.request)}},
        }  # fmt: skip
    if "{id}" in operation.path:
        document["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    document["security"] = [{"bearer": []}, {"key": []}] if operation.needs_key and has_keys else []
    return document
