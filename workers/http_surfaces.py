"""The routes of every API beside OpenAI's completions, put together."""

from __future__ import annotations

from sparkinfer.config import ServerConfig
from workers.http_anthropic import AnthropicRoutes
from workers.http_app import Routes
from workers.http_generations import Generations
from workers.http_prompts import Prompts
from workers.http_responses import ResponsesRoutes, open_store


def surface_routes(generations: Generations, prompts: Prompts, config: ServerConfig, run_dir: str) -> Routes:
    """Route template -> method -> handler. Raises ConfigError when responses cannot be stored where they should."""
    anthropic = AnthropicRoutes(generations, prompts, config)
    responses = ResponsesRoutes(generations, prompts, open_store(config, run_dir))
    return {
        "/v1/messages": {"POST": anthropic.messages},
        "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
        "/v1/responses": {"POST": responses.create},
        "/v1/responses/input_tokens": {"POST": responses.count_tokens},
        "/v1/responses/{id}": {"GET": responses.get, "DELETE": responses.delete},
        "/v1/responses/{id}/input_items": {"GET": responses.input_items},
    }
