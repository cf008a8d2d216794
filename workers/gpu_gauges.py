"""Copies the engine's numbers to the status board, once per turn of the gpu scheduler's loop. Knows names only."""

from __future__ import annotations

from ipc.status_board import GpuGauge, StatusSlot
from sparkinfer.engine.engine import Engine
from sparkinfer.engine.prefix_cache import PrefixCache


class GpuGauges:
    """The board's row of the gpu scheduler."""

    def __init__(self, status: StatusSlot, engine: Engine, num_blocks: int, num_slots: int) -> None:
        """num_blocks, num_slots: what the KV cache and the state pool have in all."""
        self._status = status
        self._engine = engine
        self._num_slots = num_slots
        status.set_gauge(GpuGauge.TOTAL_KV_BLOCKS, num_blocks)
        status.set_gauge(GpuGauge.TOTAL_STATE_SLOTS, num_slots)

    def write(self) -> None:
        """As they are now."""
        scheduler, stats = self._engine.scheduler, self._engine.stats
        self._set({
            GpuGauge.ACTIVE_REQUESTS: scheduler.num_open_requests,
            GpuGauge.WAITING_REQUESTS: scheduler.open_requests.num_waiting,
            GpuGauge.FREE_KV_BLOCKS: scheduler.num_free_blocks,
            GpuGauge.FREE_STATE_SLOTS: self._num_slots - scheduler.num_running,
            GpuGauge.STEPS: stats.num_steps,
            GpuGauge.STEP_TIME_US: round(stats.last_step_s * 1e6),
            GpuGauge.STEP_TOKENS: stats.last_step_tokens,
            GpuGauge.TOKENS_GENERATED: stats.num_output_tokens,
            GpuGauge.NAN_LOGITS: stats.num_nan_logits,
            GpuGauge.MASK_ROWS_LATE: stats.num_late_masks,
            GpuGauge.PREEMPTIONS: scheduler.num_preemptions,
            GpuGauge.SWAP_OUTS: scheduler.num_swap_outs,
            GpuGauge.ADMISSION_WAITS: scheduler.num_admission_waits,
            GpuGauge.ADMISSION_WAIT_TIMEOUTS: scheduler.num_admission_wait_timeouts,
        })
        if scheduler.prefix_cache is not None:
            self._write_prefix_cache(scheduler.prefix_cache)

    def _write_prefix_cache(self, cache: PrefixCache) -> None:
        stats = cache.stats
        self._set({
            GpuGauge.PREFIX_LOOKUPS: stats.num_lookups,
            GpuGauge.PREFIX_HITS: stats.num_hits,
            GpuGauge.CACHED_TOKENS: stats.num_tokens_reused,
            GpuGauge.PREFIX_EVICTIONS: stats.num_evictions,
            GpuGauge.PREFIX_ENTRIES: cache.num_entries,
            GpuGauge.PREFIX_KV_BLOCKS: cache.num_nodes,
            GpuGauge.PREFIX_HOST_BYTES: cache.num_host_bytes,
        })

    def _set(self, gauges: dict[GpuGauge, int]) -> None:
        for gauge, value in gauges.items():
            self._status.set_gauge(gauge, value)
