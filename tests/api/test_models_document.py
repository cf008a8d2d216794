"""GET /v1/models, bare and extended: every field accounted for."""

from __future__ import annotations

import re
from typing import Any

import httpx

from sparkinfer.api.models_document import ModelsDocument
from sparkinfer.config import PublishConfig
from tests.api.app_server import INFO, AppServer

PROVIDER_KEYS = {
    "schema_version", "id", "name", "created", "hugging_face_id", "quantization", "is_ready", "input_modalities",
    "output_modalities", "capacity",
}  # fmt: skip
PUBLISHED = PublishConfig(
    openrouter_provider=True, hugging_face_id="owner/repo", quantization="nvfp4", prompt_price_usd="0.0000001",
    completion_price_usd="0.0000003", requests_per_minute=60, prompt_tokens_per_minute=1000,
    completion_tokens_per_minute=500,
)  # fmt: skip


def only_model(publish: PublishConfig, max_queue_depth: int = 0) -> dict[str, Any]:
    document = ModelsDocument(publish, max_queue_depth).list(INFO, is_ready=True)
    assert set(document) == {"object", "data"}
    (model,) = document["data"]
    return dict(model)


def test_strict_form_has_no_other_fields() -> None:
    model = only_model(PUBLISHED, max_queue_depth=6)
    assert set(model) == PROVIDER_KEYS
    (text_in,), (text_out,) = model["input_modalities"], model["output_modalities"]
    assert set(text_in) == {"type", "supported_inputs", "pricing", "capacity"}
    assert set(text_out) == {"type", "streaming", "max_length", "supported_parameters", "pricing", "capacity"}
    assert text_in["pricing"] == [{"type": "prompt", "unit": "token", "cost_usd": "0.0000001"}]
    assert text_out["capacity"] == [{"type": "completion", "unit": "token", "per": "minute", "value": 500}]
    assert text_in["supported_inputs"] == {"max_context_length": {"value": 512, "unit": "token"}}
    assert model["capacity"] == [
        {"type": "request", "unit": "request", "per": "minute", "value": 60},
        {"type": "concurrency", "unit": "request", "value": 6},
    ]
    assert (model["hugging_face_id"], model["quantization"]) == ("owner/repo", "nvfp4")
    assert "top_k" not in text_out["supported_parameters"]


def test_what_is_not_set_is_not_published() -> None:
    model = only_model(PublishConfig(openrouter_provider=True))
    assert set(model) == PROVIDER_KEYS - {"capacity"}
    assert (model["hugging_face_id"], model["quantization"]) == ("", "Q8_0")
    assert not re.search("pricing|capacity|minute", repr(model))


def test_extended_form_names_the_context_for_everybody() -> None:
    model = only_model(PublishConfig(prompt_price_usd="0.5"))
    assert {model["context_length"], model["max_model_len"], model["meta"]["n_ctx"]} == {512}
    assert (model["object"], model["owned_by"], model["pricing"]) == ("model", "sparkinfer", {"prompt": "0.5"})
    assert {"temperature", "top_k", "logprobs"} < set(model["supported_sampling_parameters"])


def test_served_live() -> None:
    with AppServer(publish=PUBLISHED) as app:
        for is_ready in (True, False):
            app.service.is_ready = is_ready
            listed = httpx.get(f"{app.url}/v1/models").json()["data"][0]
            assert listed == httpx.get(f"{app.url}/v1/models/tiny").json()
            assert listed["is_ready"] is is_ready
        info = httpx.get(f"{app.url}/v1/info").json()
        assert (info["max_context"], info["max_output_tokens"], info["quantization"]) == (512, 64, "Q8_0")
