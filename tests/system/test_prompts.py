"""Prompts and tokens on the real tokenizer and template."""

from __future__ import annotations

import httpx

from tests.system.harness import Server

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ünïcode 😀 <|im_end|>?"}]


def test_template_tokens_and_text_agree(server: Server) -> None:
    with httpx.Client(base_url=f"{server.url}/v1", timeout=30) as client:
        chat = {"messages": MESSAGES}
        tokenized = client.post("/tokenize", json=chat | {"return_pieces": True}).json()
        rendered = client.post("/apply-template", json=chat).json()
        assert rendered["tokens"] == tokenized["tokens"] == len(tokenized["token_ids"])
        assert rendered["prompt"].startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
        assert rendered["prompt"].endswith("<|im_start|>assistant\n")
        assert bytes(b for piece in tokenized["pieces"] for b in piece["bytes"]).decode() == rendered["prompt"]
        assert [piece["id"] for piece in tokenized["pieces"]] == tokenized["token_ids"]
        body = {"token_ids": tokenized["token_ids"]}
        assert client.post("/detokenize", json=body).json()["text"] == rendered["prompt"]
        shown = client.post("/detokenize", json=body | {"skip_special_tokens": True}).json()["text"]
        assert "<|im_start|>" not in shown
        assert "<|im_end|>?" in shown  # the user's own text is not special
        usage = client.post("/chat/completions", json=chat | {"max_tokens": 1}).json()["usage"]
        assert usage["prompt_tokens"] == tokenized["tokens"]
