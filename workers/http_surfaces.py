"""The routes of every API beside OpenAI's completions, put together."""

from __future__ import annotations

from sparkinfer.config import ServerConfig
from workers.http_anthropic import AnthropicRoutes
from workers.http_app import Routes
from workers.http_generations import Generations
from workers.http_prompts import Prompts


def surface_routes(generations: Generations, prompts: Prompts, config: ServerConfig) -> Routes:
    """Route template -> method -> handler."""
    anthropic = AnthropicRoutes(generations, prompts, config)
    return {
        "/v1/messages": {"POST": anthropic.messages},
        "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
    }
