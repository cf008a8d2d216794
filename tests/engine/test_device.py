"""What a device says about names it does not know and memory it does not have."""

from __future__ import annotations

import pytest
import torch

from sparkinfer.engine.device import check_prefill_dtype, choose_device, memory_for
from sparkinfer.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["banana", "meta", "cuda:x", "cuda:9999"])
def test_names_that_are_no_device_here(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\[engine\] device = "):
        choose_device(name)


@pytest.mark.parametrize(
    ("device", "is_deterministic", "reason"),
    [
        ("cuda", True, "not with deterministic = true"),
        ("cpu", False, "needs an NVIDIA GPU, and the device is cpu"),
        ("cuda:0", False, "NVIDIA L4 has no FP8 products .* capability 9.0"),
    ],
)
def test_fp8_where_it_cannot_be_had(
    device: str, is_deterministic: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA L4")
    check_prefill_dtype("auto", torch.device(device), is_deterministic)
    with pytest.raises(ConfigError, match=rf"\[engine\] prefill_dtype = 'fp8': {reason}"):
        check_prefill_dtype("fp8", torch.device(device), is_deterministic)


def test_fp8_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    check_prefill_dtype("fp8", torch.device("cuda"), False)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of "
                                "139.80 GiB of which 1.2 GiB is free. See documentation"),
         "20.50 GiB more were wanted, "),
        (RuntimeError("Triton Error [CUDA]: out of memory"), ""),
    ],
)
def test_no_memory_at_a_start_is_one_sentence(
    error: RuntimeError, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkinfer.engine.device.free_memory", lambda device: 3 << 29)
    with pytest.raises(ConfigError) as raised, memory_for("[a] b = 4: states of so many", CPU, "lower it"):
        raise error
    sentence = f"[a] b = 4: states of so many found no memory on cpu: {wanted}1.50 GiB are free; lower it"
    assert str(raised.value) == sentence


def test_other_failures_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="misaligned"), memory_for("[a] b = 4: states", CPU, "lower it"):
        raise RuntimeError("CUDA error: misaligned address")
