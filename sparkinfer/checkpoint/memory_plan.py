"""What a model takes in memory at a given context and number of sequences, and what this machine has.

Derived from hyperparameters alone; the engine's own pools decide what is really allocated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams

# Types that the CPU kernels multiply by as they are (kernels/cpu/packed_layout.py, and the floats).
CPU_TYPES = frozenset((
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
))
_HALF_BYTES, _SCALE_BYTES, _F32_BYTES = 2, 2, 4


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of weights as stored and as float32, of keys and values in each cache type, and of recurrent state.

    A GPU holds weights as they are stored, its cache is bf16 or int8. A CPU's cache is float16, float32 or int8, its
    weights are as stored too where its kernels know their types; on one without AVX2 all of them are float32.
    """

    weights_bytes: int
    weights_cpu_bytes: int
    weights_f32_bytes: int
    kv_f32_bytes: int
    kv_bf16_bytes: int
    kv_int8_bytes: int  # a byte a value and one half-precision scale per token, head, and key or value
    state_bytes: int

    @property
    def kv_f16_bytes(self) -> int:
        return self.kv_bf16_bytes

    @property
    def total_bf16_bytes(self) -> int:
        return self.weights_bytes + self.kv_bf16_bytes + self.state_bytes

    @property
    def total_int8_bytes(self) -> int:
        return self.weights_bytes + self.kv_int8_bytes + self.state_bytes

    @property
    def total_cpu_bytes(self) -> int:
        return self.weights_cpu_bytes + self.kv_f16_bytes + self.state_bytes

    @property
    def total_cpu_int8_bytes(self) -> int:
        return self.weights_cpu_bytes + self.kv_int8_bytes + self.state_bytes


def plan_memory(gguf: GGUFFile, hparams: HParams, num_tokens: int, num_seqs: int) -> MemoryPlan:
    """For `num_seqs` sequences of `num_tokens` tokens each; prediction blocks behind the trunk are not loaded."""
    heads = 2 * hparams.num_kv_heads * hparams.num_attention_layers * num_tokens * num_seqs
    conv = (hparams.ssm_conv_kernel - 1) * hparams.ssm_conv_channels
    state = hparams.ssm_time_step_rank * hparams.ssm_state_size**2
    return MemoryPlan(
        weights_bytes=sum(info.num_bytes for info in gguf.tensors.values() if not is_nextn(info.name, hparams)),
        weights_cpu_bytes=weights_cpu_bytes(gguf, hparams),
        weights_f32_bytes=weights_f32_bytes(gguf, hparams),
        kv_f32_bytes=heads * hparams.head_dim * _F32_BYTES,
        kv_bf16_bytes=heads * hparams.head_dim * _HALF_BYTES,
        kv_int8_bytes=heads * (hparams.head_dim + _SCALE_BYTES),
        state_bytes=(conv + state) * _F32_BYTES * hparams.num_recurrent_layers * num_seqs,
    )


def weights_f32_bytes(gguf: GGUFFile, hparams: HParams) -> int:
    """What the trunk's weights take as float32."""
    return _F32_BYTES * sum(info.num_elements for info in gguf.tensors.values() if not is_nextn(info.name, hparams))


def weights_cpu_bytes(gguf: GGUFFile, hparams: HParams) -> int:
    """What they take packed for the CPU kernels: as in the file, or float32 where those do not know the type."""
    return sum(
        info.num_bytes if info.ggml_type.name in CPU_TYPES else info.num_elements * _F32_BYTES
        for info in gguf.tensors.values()
        if not is_nextn(info.name, hparams)
    )


def is_nextn(tensor_name: str, hparams: HParams) -> bool:
    """Whether the tensor belongs to a prediction block behind the trunk."""
    part = tensor_name.split(".")
    return part[0] == "blk" and len(part) > 1 and part[1].isdecimal() and int(part[1]) >= hparams.num_layers


def host_memory_bytes() -> int:
    """Memory of this machine, or of the control group we run in if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def gpu_memory_bytes() -> dict[str, int]:
    """Name -> bytes of each GPU that nvidia-smi reports; empty where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    query = [command, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [[field.strip() for field in line.split(",")] for line in completed.stdout.splitlines()]
    return {f"{row[0]} {row[1]}": int(row[2]) << 20 for row in rows if len(row) == 3 and row[2].isdecimal()}
