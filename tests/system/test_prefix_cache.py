"""Prefix reuse as a client sees it: usage, explanation, metrics, and across a restart."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.system.harness import Server

SYSTEM = {"role": "system", "content": "You are a helpful assistant. " + "Mind the rules and be brief. " * 12}
EXPLAIN = {"x-sparkinfer-explain-cache": "1"}


def ask(server: Server, messages: list[dict], headers: dict | None = None) -> tuple[str, dict]:
    body = {"messages": [SYSTEM, *messages], "max_tokens": 20, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    reply.raise_for_status()
    document = reply.json()
    return document["choices"][0]["message"]["content"], document["usage"]


def test_a_conversation_is_reused_explained_and_survives_a_restart(embedded_model: Path, tmp_path: Path) -> None:
    settings = (f"prefix_cache.directory={tmp_path}", "model.max_model_len=1024")
    first = [{"role": "user", "content": "Name a colour."}]
    with Server(embedded_model, *settings) as server:
        answer, usage = ask(server, first, EXPLAIN)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert usage["prompt_tokens_details"]["cache"]["reason"] == "nothing_cached"
        second = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "And another one?"}]
        again, longer = ask(server, second)
        assert longer["prompt_tokens_details"].keys() == {"cached_tokens"}
        assert longer["prompt_tokens_details"]["cached_tokens"] >= usage["total_tokens"] - 32
        edited = [{"role": "user", "content": "Name a river."}]
        _, other = ask(server, edited, EXPLAIN)
        report = other["prompt_tokens_details"]["cache"]
        assert report["reason"] == "diverged"
        assert 0 < report["diverged_at"] < other["prompt_tokens"]
        assert report["cached_tokens"] == other["prompt_tokens_details"]["cached_tokens"] > 0
        metrics = httpx.get(f"{server.url}/metrics", timeout=10).text
        reused = longer["prompt_tokens_details"]["cached_tokens"] + report["cached_tokens"]
        assert "sparkinfer_prefix_cache_lookups_total 3\n" in metrics
        assert "sparkinfer_prefix_cache_hits_total 2\n" in metrics
        assert f"sparkinfer_prefix_cache_tokens_reused_total {reused}\n" in metrics
    with Server(embedded_model, *settings) as server:
        repeated, usage = ask(server, second)
        assert repeated == again
        assert usage["prompt_tokens_details"]["cached_tokens"] >= longer["prompt_tokens"] - 32


def test_a_pinned_prefix_is_there_from_the_start(embedded_model: Path, tmp_path: Path) -> None:
    tokens = list(range(100, 164))
    listed = tmp_path / "tokens.json"
    listed.write_text(json.dumps(tokens))
    pinned = f"prefix_cache.pinned_tokens_file={listed}"
    with Server(embedded_model, pinned, "model.max_model_len=512") as server:
        body = {"prompt": [*tokens, 5, 6], "max_tokens": 1}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
