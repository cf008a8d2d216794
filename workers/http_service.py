"""What an http worker knows about the rest of the service: the model's facts, readiness, the engine's gauges.

Reads the status board and the supervisor's announcements; never talks to a worker.
"""

from __future__ import annotations

from typing import Protocol

from ipc.status_board import GpuGauge
from sparkinfer.api.models import ModelInfo, model_info_from_json
from workers.http_grammar_metrics import grammar_text
from workers.http_processes import Processes, ProcessSample
from workers.process import WorkerContext

GPU = "gpu-0"

_ENGINE_GAUGES = {
    "active_requests": GpuGauge.ACTIVE_REQUESTS,
    "waiting_requests": GpuGauge.WAITING_REQUESTS,
    "free_kv_blocks": GpuGauge.FREE_KV_BLOCKS,
    "total_kv_blocks": GpuGauge.TOTAL_KV_BLOCKS,
    "free_state_slots": GpuGauge.FREE_STATE_SLOTS,
    "total_state_slots": GpuGauge.TOTAL_STATE_SLOTS,
    "engine_step_tokens": GpuGauge.STEP_TOKENS,
    "engine_steps_total": GpuGauge.STEPS,
    "engine_tokens_generated_total": GpuGauge.TOKENS_GENERATED,
    "engine_prompt_tokens_total": GpuGauge.PROMPT_TOKENS,
    "engine_requests_total": GpuGauge.REQUESTS,
    "engine_aborts_total": GpuGauge.ABORTS,
    "preemptions_total": GpuGauge.PREEMPTIONS,
    "swap_outs_total": GpuGauge.SWAP_OUTS,
    "admission_waits_total": GpuGauge.ADMISSION_WAITS,
    "admission_wait_timeouts_total": GpuGauge.ADMISSION_WAIT_TIMEOUTS,
    "nan_logits_total": GpuGauge.NAN_LOGITS,
    "mask_rows_late_total": GpuGauge.MASK_ROWS_LATE,
}
_PREFIX_GAUGES = {
    "prefix_cache_lookups_total": GpuGauge.PREFIX_LOOKUPS,
    "prefix_cache_hits_total": GpuGauge.PREFIX_HITS,
    "prefix_cache_tokens_reused_total": GpuGauge.CACHED_TOKENS,
    "prefix_cache_evictions_total": GpuGauge.PREFIX_EVICTIONS,
    "prefix_cache_entries": GpuGauge.PREFIX_ENTRIES,
    "prefix_cache_kv_blocks": GpuGauge.PREFIX_KV_BLOCKS,
    "prefix_cache_host_bytes": GpuGauge.PREFIX_HOST_BYTES,
}
_USAGE_RATIOS = (
    ("kv_cache_usage_ratio", "free_kv_blocks", "total_kv_blocks"),
    ("state_usage_ratio", "free_state_slots", "total_state_slots"),
)


class Service(Protocol):
    """What the routes need to know."""

    @property
    def model_info(self) -> ModelInfo | None:
        """None until the engine has loaded the model for the first time."""

    @property
    def is_ready(self) -> bool:
        """The engine and at least one text worker are up."""

    @property
    def max_queue_depth(self) -> int:
        """Requests that may run and wait at once; 0: unlimited."""

    def engine_gauges(self) -> dict[str, float]:
        """active_requests, free_kv_blocks and so on, as the engine last wrote them; counters end in _total."""

    def grammar_text(self) -> str:
        """Prometheus text of what the text workers' grammars did."""

    def processes(self) -> list[ProcessSample]:
        """How every process of the service is doing."""


class LiveService:
    """The service as announced by the supervisor and written on the status board."""

    def __init__(self, context: WorkerContext) -> None:
        self._peers = context.peers
        self._board = context.board
        self._processes = Processes(context.board, context.spec.workers, context.spec.supervisor_pid)
        self._gpu = context.board.slot(context.spec.workers.index(GPU))
        workers = context.spec.workers
        self._texts = [context.board.slot(i) for i, name in enumerate(workers) if name.startswith("text-")]
        self.model_info: ModelInfo | None = None
        self.max_queue_depth = context.config.scheduler.max_queue_depth
        self._names = _ENGINE_GAUGES | (_PREFIX_GAUGES if context.config.prefix_cache.enabled else {})

    @property
    def is_ready(self) -> bool:
        has_engine = self._peers.outbox(GPU) is not None
        return has_engine and self.model_info is not None and bool(self._peers.names("text"))

    def engine_gauges(self) -> dict[str, float]:
        gpu = self._gpu
        gauges: dict[str, float] = {
            name: gpu.total(gauge) if name.endswith("_total") else gpu.gauge(gauge)
            for name, gauge in self._names.items()
        }
        gauges["running_requests"] = max(0, gauges["active_requests"] - gauges["waiting_requests"])
        for usage, free, total in _USAGE_RATIOS:
            gauges[usage] = 1 - gauges[free] / gauges[total] if gauges[total] else 0.0
        gauges["uptime_seconds"] = self._processes.uptime_s()
        return gauges

    def grammar_text(self) -> str:
        return grammar_text(self._texts)

    def processes(self) -> list[ProcessSample]:
        return self._processes.samples()

    def on_peer_up(self, name: str) -> None:
        """The engine publishes the model's facts before it is announced."""
        info = self._board.read_service_info() if name == GPU else None
        if info is not None:
            self.model_info = model_info_from_json(info)
