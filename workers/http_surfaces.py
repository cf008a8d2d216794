"""The routes of every API beside OpenAI's completions, put together."""

from __future__ import annotations

import functools

from sparkinfer.config import ServerConfig
from workers.http_access_log import AccessLog
from workers.http_anthropic import AnthropicRoutes
from workers.http_api_keys import ApiKeys
from workers.http_app import Routes, SocketRoutes
from workers.http_generations import Generations
from workers.http_lmstudio import LmStudioRoutes
from workers.http_lmstudio_calls import NAMESPACES, LmStudioCalls
from workers.http_lmstudio_socket import LmStudioSockets
from workers.http_ollama import OllamaRoutes
from workers.http_prompts import Prompts
from workers.http_response_store import open_keeper
from workers.http_responses import ResponsesRoutes


def surface_routes(generations: Generations, prompts: Prompts, config: ServerConfig, run_dir: str) -> Routes:
    """Route template -> method -> handler. Raises ConfigError when responses cannot be stored where they should."""
    store = open_keeper(config, run_dir)
    anthropic = AnthropicRoutes(generations, prompts, config)
    responses = ResponsesRoutes(generations, prompts, store)
    return {
        "/v1/messages": {"POST": anthropic.messages},
        "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
        "/v1/responses": {"POST": responses.create},
        "/v1/responses/input_tokens": {"POST": responses.count_tokens},
        "/v1/responses/compact": {"POST": responses.no_compaction},
        "/v1/responses/{id}": {"GET": responses.get, "DELETE": responses.delete},
        "/v1/responses/{id}/input_items": {"GET": responses.input_items},
        **_ollama_routes(OllamaRoutes(generations)),
        **_lmstudio_routes(LmStudioRoutes(generations, store)),
    }


def surface_sockets(
    generations: Generations, prompts: Prompts, keys: ApiKeys, access_log: AccessLog
) -> SocketRoutes:
    """Path -> what serves a WebSocket there."""
    lmstudio = LmStudioSockets(generations, LmStudioCalls(generations, prompts), keys, access_log)
    return {f"/{name}": functools.partial(lmstudio.serve, namespace=name) for name in NAMESPACES}


def _ollama_routes(ollama: OllamaRoutes) -> Routes:
    return {
        "/": {"GET": ollama.greet},
        "/api/version": {"GET": ollama.version},
        "/api/tags": {"GET": ollama.tags},
        "/api/ps": {"GET": ollama.ps},
        "/api/show": {"POST": ollama.show},
        "/api/chat": {"POST": ollama.chat},
        "/api/generate": {"POST": ollama.generate},
        "/api/embed": {"POST": ollama.no_embeddings},
        "/api/embeddings": {"POST": ollama.no_embeddings},
        "/api/pull": {"POST": ollama.no_management},
        "/api/push": {"POST": ollama.no_management},
        "/api/create": {"POST": ollama.no_management},
        "/api/copy": {"POST": ollama.no_management},
        "/api/delete": {"DELETE": ollama.no_management},
        "/api/blobs/{digest}": {"GET": ollama.no_management, "POST": ollama.no_management},
    }


def _lmstudio_routes(lmstudio: LmStudioRoutes) -> Routes:
    return {
        "/lmstudio-greeting": {"GET": lmstudio.greet},
        "/api/v0/models": {"GET": lmstudio.v0_models},
        "/api/v0/models/{id}": {"GET": lmstudio.v0_model},
        "/api/v0/chat/completions": {"POST": lmstudio.v0_chat},
        "/api/v0/completions": {"POST": lmstudio.v0_completion},
        "/api/v0/embeddings": {"POST": lmstudio.no_embeddings},
        "/api/v1/models": {"GET": lmstudio.v1_models},
        "/api/v1/models/load": {"POST": lmstudio.no_management},
        "/api/v1/models/unload": {"POST": lmstudio.no_management},
        "/api/v1/models/download": {"POST": lmstudio.no_management},
        "/api/v1/chat": {"POST": lmstudio.v1_chat},
    }
