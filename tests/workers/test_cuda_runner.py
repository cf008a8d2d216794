"""A start on a device whose memory does not suffice: one sentence with the key to change, never a traceback."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from sparkinfer.checkpoint.gguf import GGUFFile
from sparkinfer.checkpoint.hparams import HParams
from sparkinfer.config import load_config
from sparkinfer.errors import ConfigError
from tests.model.tiny import GOLDEN
from workers import cuda_runner

REFUSAL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80 GiB")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("load_decode_weights", r"\[engine\] device = 'auto': the weights found"),
        ("measure_workspace", r"\[scheduler\] max_num_batched_tokens = \d+: steps of that size found"),
        ("RingStatePool", r"\[scheduler\] max_num_seqs = 64: recurrent states of so many found"),
        ("KVCache", r"\[engine\] kv_cache_gib = 0: the KV cache found"),
        ("CudaModelRunner", r"\[engine\] kv_cache_gib = 0: what runs beside the cache found"),
    ],
)
def test_whatever_finds_no_memory_says_what_to_lower(where: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything before `where` succeeds."""
    config = load_config(None, [], {})
    gguf = GGUFFile.open(GOLDEN / "qwen35.gguf")
    cpu = torch.device("cpu")
    weights = mock.MagicMock()
    weights.output.quants.device = cpu
    made = {"load_decode_weights": weights, "measure_workspace": 0, "RingStatePool": None, "KVCache": None,
            "CudaModelRunner": None}
    for name, result in made.items():
        refusal = REFUSAL if name == where else None
        monkeypatch.setattr(cuda_runner, name, mock.MagicMock(return_value=result, side_effect=refusal))
    monkeypatch.setattr(cuda_runner, "_log_memory", lambda *_: None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (3 << 29, 8 << 30))
    with pytest.raises(ConfigError, match=rf"{words} no memory on cpu: 2\.00 GiB more were wanted, .* GiB are free; "):
        cuda_runner.boot(mock.MagicMock(config=config), gguf, HParams.from_gguf(gguf), cpu, mock.MagicMock())
