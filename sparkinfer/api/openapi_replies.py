"""JSON schemas of what is answered: the OpenAI documents with our additions, and the small ones."""

from __future__ import annotations

from typing import Any

from sparkinfer.api.openapi_requests import BOOLEAN, OBJECT, STRING, Schema, array, optional, ref

_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_FINISH: Schema = {"type": "string", "enum": ["stop", "length", "tool_calls"]}


def _reply(properties: dict[str, Schema], *, extra: dict[str, Schema] | None = None, closed: bool = True) -> Schema:
    """An object with all of `properties`, some of `extra`, and, when closed, nothing else."""
    document: dict[str, Any] = {
        "type": "object", "properties": {**properties, **(extra or {})}, "required": list(properties),
    }  # fmt: skip
    return document | {"additionalProperties": False} if closed else document


_HEAD: dict[str, Schema] = {
    "id": STRING, "object": STRING, "created": _COUNT, "model": STRING, "system_fingerprint": STRING,
}  # fmt: skip
_TOKEN: dict[str, Schema] = {
    "token": STRING, "token_id": _COUNT, "logprob": {"type": "number", "maximum": 0}, "bytes": array(_COUNT),
}  # fmt: skip
_LIMITS: dict[str, Schema] = {
    "tokens": _COUNT, "max_context": _COUNT, "max_output_tokens": _COUNT, "model": STRING,
}  # fmt: skip
_SCORE: dict[str, Schema] = {
    "tokens": array(STRING),
    "token_ids": array(_COUNT),
    "bytes": array(array(_COUNT)),
    "logprobs": array(optional({"type": "number", "maximum": 0})),
    "sum_logprob": {"type": "number", "maximum": 0},
}
_SCORE_EXTRA: dict[str, Schema] = {"top_logprobs": array(array(_reply(_TOKEN)))}
_STATUS = _reply({"status": STRING})

REPLIES: dict[str, Schema] = {
    "Error": _reply(
        {
            "error": _reply(
                {"message": STRING, "type": STRING, "param": optional(STRING), "code": optional(STRING)},
                extra={"n_prompt_tokens": _COUNT, "n_ctx": _COUNT},
            )
        }
    ),
    "Usage": _reply(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _reply({"cached_tokens": _COUNT}, closed=False),
            "completion_tokens_details": _reply({"reasoning_tokens": _COUNT}, closed=False),
            "ttft_ms": _NUMBER,
            "generation_ms": _NUMBER,
            "decode_tps": _NUMBER,
        }
    ),
    "ChatLogprobs": _reply(
        {"content": array(_reply({**_TOKEN, "top_logprobs": array(_reply(_TOKEN))})), "refusal": {"type": "null"}}
    ),
    "CompletionLogprobs": _reply(
        {
            "tokens": array(STRING),
            "token_logprobs": array(optional(_NUMBER)),
            "top_logprobs": array(optional(OBJECT)),
            "text_offset": array(_COUNT),
        }
    ),
    "ChatCompletion": _reply(
        {
            **_HEAD,
            "choices": array(
                _reply(
                    {
                        "index": _COUNT,
                        "message": _reply(
                            {"role": STRING, "content": optional(STRING), "refusal": {"type": "null"}},
                            extra={
                                "reasoning": STRING,
                                "reasoning_content": STRING,
                                "tool_calls": array(ref("ToolCall"), 1),
                            },
                        ),
                        "logprobs": optional(ref("ChatLogprobs")),
                        "finish_reason": _FINISH,
                    }
                ),
                1,
            ),
            "usage": ref("Usage"),
        }
    ),
    "Delta": _reply(
        {},
        extra={
            "role": STRING,
            "content": optional(STRING),
            "reasoning": STRING,
            "reasoning_content": STRING,
            "tool_calls": array(ref("ToolCallDelta"), 1),
        },
    ),
    "ToolCallDelta": _reply(
        {"index": _COUNT, "function": _reply({"arguments": STRING}, extra={"name": STRING})},
        extra={"id": STRING, "type": STRING},
    ),
    "ChatCompletionChunk": _reply(
        {
            **_HEAD,
            "choices": array(
                _reply(
                    {
                        "index": _COUNT,
                        "delta": ref("Delta"),
                        "logprobs": optional(ref("ChatLogprobs")),
                        "finish_reason": optional(_FINISH),
                    }
                )
            ),
        },
        extra={"usage": optional(ref("Usage"))},
    ),
    "Completion": _reply(
        {
            **_HEAD,
            "choices": array(
                _reply(
                    {
                        "index": _COUNT,
                        "text": STRING,
                        "logprobs": optional(ref("CompletionLogprobs")),
                        "finish_reason": optional(_FINISH),
                    }
                )
            ),
        },
        extra={"usage": optional(ref("Usage"))},
    ),
    "Score": {
        "anyOf": [
            _reply({**_HEAD, **_SCORE, "usage": ref("Usage")}, extra=_SCORE_EXTRA),
            _reply(
                {**_HEAD, "data": array(_reply({"object": STRING, "index": _COUNT, **_SCORE}, extra=_SCORE_EXTRA)),
                 "usage": ref("Usage")}
            ),
        ]
    },
    "Tokenized": _reply(_LIMITS, extra={"token_ids": array(_COUNT), "pieces": array(OBJECT)}),
    "RenderedPrompt": _reply({"prompt": STRING, **_LIMITS}),
    "Detokenized": _reply({"text": STRING, "tokens": _COUNT, "model": STRING}),
    "Model": _reply(
        {
            "schema_version": STRING,
            "id": STRING,
            "name": STRING,
            "created": _COUNT,
            "hugging_face_id": STRING,
            "quantization": optional(STRING),
            "is_ready": BOOLEAN,
            "input_modalities": array(OBJECT, 1),
            "output_modalities": array(OBJECT, 1),
        },
        closed=False,
    ),
    "Models": _reply({"object": STRING, "data": array(ref("Model"), 1, 1)}),
    "Info": _reply(
        {"model": STRING, "max_context": _COUNT, "max_output_tokens": _COUNT, "vocab_size": _COUNT}, closed=False
    ),
    "Capacity": _reply(
        {
            "active_requests": _COUNT,
            "waiting_requests": _COUNT,
            "free_kv_blocks": _COUNT,
            "max_queue_depth": _COUNT,
            "accepting_requests": BOOLEAN,
        }
    ),
    "Status": _STATUS,
    "Unhealthy": _reply({"status": STRING, "reason": STRING}),
}
