"""Names of environment variables, and the settings that they stand for. Reads none of them."""

from __future__ import annotations

# Environment name -> (section, key). Names of the C++ server are kept; later rows win over earlier ones.
ENVIRONMENT = {
    "SPARKINFER_HOST": ("server", "host"),
    "SPARKINFER_PORT": ("server", "port"),
    "SPARKINFER_SHUTDOWN_GRACE_S": ("server", "drain_grace_s"),
    "SPARKINFER_DRAIN_GRACE_S": ("server", "drain_grace_s"),
    "SPARKINFER_SSE_KEEPALIVE_SECONDS": ("server", "sse_keepalive_s"),
    "SPARKINFER_ALWAYS_STREAM_USAGE": ("server", "always_stream_usage"),
    "SPARKINFER_CACHE": ("model", "cache_dir"),
    "SPARKINFER_MAX_OUTPUT_TOKENS": ("model", "max_output_tokens"),
    "SPARKINFER_MODEL_CREATED": ("model", "created"),
    "SPARKINFER_SAMPLING_DEFAULTS": ("model", "sampling_defaults"),
    "SPARKINFER_DETERMINISTIC": ("engine", "deterministic"),
    "SPARKINFER_KV_INT8": ("engine", "kv_dtype"),
    "SPARKINFER_SCHED_POLICY": ("scheduler", "policy"),
    "SPARKINFER_BATCH_TOKENS": ("scheduler", "max_num_batched_tokens"),
    "SPARKINFER_PREFILL_CHUNK_TOKENS": ("scheduler", "prefill_chunk_tokens"),
    "SPARKINFER_PREFILL_MIX_MAX": ("scheduler", "prefill_mix_max_tokens"),
    "SPARKINFER_ADMISSION_WAIT_S": ("scheduler", "admission_wait_s"),
    "SPARKINFER_MAX_QUEUE_DEPTH": ("scheduler", "max_queue_depth"),
    "SPARKINFER_REQUEST_TIMEOUT_S": ("scheduler", "request_timeout_s"),
    "SPARKINFER_PREFIX_CACHE": ("prefix_cache", "enabled"),
    "SPARKINFER_PREFIX_CACHE_ENTRIES": ("prefix_cache", "max_entries"),
    "SPARKINFER_PREFIX_CACHE_HOST_MB": ("prefix_cache", "host_mib"),
    "SPARKINFER_PREFIX_CACHE_MIN_TOKENS": ("prefix_cache", "min_tokens"),
    "SPARKINFER_SERVER_PREFIX_TOKEN_IDS": ("prefix_cache", "pinned_tokens"),
    "SPARKINFER_SERVER_PREFIX_TOKEN_FILE": ("prefix_cache", "pinned_tokens_file"),
    "SPARKINFER_TOOL_GRAMMAR": ("grammar", "enabled"),
    "SPARKINFER_OPENROUTER_PROVIDER": ("publish", "openrouter_provider"),
    "SPARKINFER_HF_MODEL_ID": ("publish", "hugging_face_id"),
    "SPARKINFER_QUANTIZATION": ("publish", "quantization"),
    "SPARKINFER_PROMPT_PRICE_USD": ("publish", "prompt_price_usd"),
    "SPARKINFER_COMPLETION_PRICE_USD": ("publish", "completion_price_usd"),
    "SPARKINFER_REQUESTS_PER_MINUTE": ("publish", "requests_per_minute"),
    "SPARKINFER_PROMPT_TOKENS_PER_MINUTE": ("publish", "prompt_tokens_per_minute"),
    "SPARKINFER_COMPLETION_TOKENS_PER_MINUTE": ("publish", "completion_tokens_per_minute"),
}

# Words of the C++ server for values that our keys name otherwise.
ENVIRONMENT_WORDS = {"SPARKINFER_KV_INT8": {"1": "int8", "0": "auto"}}
