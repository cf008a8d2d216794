"""Times drawing a token per row on the card that is there: the kernels in a graph and launched, and torch's operations.

    python -m ops.bench.gpu_draws [--vocab 248320] [--rows 1,8,64]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from ops.bench.gpu_timing import graph_us
from sparkinfer.engine import cuda_draw
from sparkinfer.engine.sampler import draw
from sparkinfer.engine.sampling_batch import RandomBatch, SamplingSlots
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence
from sparkinfer.engine.sequence import SlotId
from sparkinfer.sampling_params import SamplingParams

DEVICE = torch.device("cuda", 0)
CONTROLS = {
    "none": {}, "top_k 20": {"top_k": 20}, "top_p 0.95": {"top_p": 0.95},
    "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
}
REPEATS = 20


def controls_of(num_rows: int, controls: dict[str, float]) -> RandomBatch:
    slots = SamplingSlots(num_rows, DEVICE)
    for slot in range(num_rows):
        sampling = SamplingParams(max_tokens=9, seed=slot, temperature=0.7, **controls)
        slots.admit(SlotId(slot), Admission(sampling, [1], ()))
    rows = [
        ScheduledSequence(None, SlotId(slot), 3, 1, None, 0, (), True)  # type: ignore[arg-type]  # no sequence behind it
        for slot in range(num_rows)
    ]
    return slots.build(rows).random[0]


def launched_us(function: Callable[[], object]) -> float:
    """Host time of one call when calls follow one another, the device's included."""
    function()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(REPEATS):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / REPEATS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--rows", default="1,8,64")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), f"vocabulary {arguments.vocab}")
    for num_rows in (int(count) for count in arguments.rows.split(",")):
        logits = torch.randn(num_rows, arguments.vocab, device=DEVICE) * 3
        for name, controls in CONTROLS.items():
            batch = controls_of(num_rows, controls)
            in_graph = graph_us(lambda x=logits, b=batch: cuda_draw.draw(x, b))
            kernels = launched_us(lambda x=logits, b=batch: cuda_draw.draw(x, b))
            plain = launched_us(lambda x=logits, b=batch: draw(x, b))
            print(f"{num_rows} rows, {name}: kernels {in_graph:.0f} us in a graph, {kernels:.0f} us launched; "
                  f"torch {plain:.0f} us launched", flush=True)


if __name__ == "__main__":
    main()
