"""Our metrics once more under the names that vLLM's dashboards look for. Knows names; never values."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SUCCESS = 'vllm:request_success_total{{finished_reason="{}"}}'
# Ours, with the label that selects -> theirs and its type.
_SAMPLES = {
    "sparkinfer_running_requests": (("vllm:num_requests_running", "gauge"),),
    "sparkinfer_waiting_requests": (("vllm:num_requests_waiting", "gauge"),),
    "sparkinfer_kv_cache_usage_ratio": (("vllm:kv_cache_usage_perc", "gauge"), ("vllm:gpu_cache_usage_perc", "gauge")),
    "sparkinfer_preemptions_total": (("vllm:num_preemptions_total", "counter"),),
    "sparkinfer_engine_prompt_tokens_total": (("vllm:prefix_cache_queries_total", "counter"),),
    "sparkinfer_prefix_cache_tokens_reused_total": (("vllm:prefix_cache_hits_total", "counter"),),
    'sparkinfer_tokens_total{kind="prompt"}': (("vllm:prompt_tokens_total", "counter"),),
    'sparkinfer_tokens_total{kind="completion"}': (("vllm:generation_tokens_total", "counter"),),
    'sparkinfer_choices_total{finish_reason="stop"}': ((_SUCCESS.format("stop"), "counter"),),
    'sparkinfer_choices_total{finish_reason="length"}': ((_SUCCESS.format("length"), "counter"),),
}  # fmt: skip
_HISTOGRAMS = {
    "sparkinfer_time_to_first_token_seconds": ("vllm:time_to_first_token_seconds",),
    "sparkinfer_inter_token_latency_seconds": (
        "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
    ),
    "sparkinfer_request_duration_seconds": ("vllm:e2e_request_latency_seconds",),
    "sparkinfer_queue_seconds": ("vllm:request_queue_time_seconds",),
    "sparkinfer_prefill_seconds": ("vllm:request_prefill_time_seconds",),
    "sparkinfer_decode_seconds": ("vllm:request_decode_time_seconds",),
}  # fmt: skip


def with_vllm_names(text: str, model: str) -> str:
    """`text`, an exposition of ours, with the aliases behind it. model: value of their label model_name."""
    lines: list[str] = []
    typed: set[str] = set()
    for name, kind, labels, value in _aliases(text):
        family = re.sub("_(bucket|sum|count)$", "", name) if kind == "histogram" else name
        if family not in typed:
            typed.add(family)
            lines.append(f"# TYPE {family} {kind}")
        model_label = f'model_name="{model}"'
        lines.append(f"{name}{{{model_label}{',' if labels else ''}{labels}}} {value}")
    return text + "\n".join(lines) + "\n"


def _aliases(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, labels, value) of every alias, families together."""
    samples = [line.rpartition(" ") for line in text.splitlines() if line.startswith("sparkinfer_")]
    values = {sample: value for sample, _, value in samples}
    for ours, aliases in _SAMPLES.items():
        for alias, kind in aliases:
            name, _, labels = alias.rstrip("}").partition("{")
            if ours in values:
                yield name, kind, labels, values[ours]
    for ours, names in _HISTOGRAMS.items():
        own = [(sample, value) for sample, value in values.items() if sample.startswith(ours + "_")]
        for alias in names:
            for sample, value in own:
                name, _, labels = sample.rstrip("}").partition("{")
                yield alias + name.removeprefix(ours), "histogram", labels, value
