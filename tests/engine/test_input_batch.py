"""InputBatch: a step as the tensors that a forward takes."""

from __future__ import annotations

import torch

from sparkinfer.engine.input_batch import InputBatch
from sparkinfer.engine.scheduler_output import Admission, ScheduledSequence, SchedulerOutput
from sparkinfer.sampling_params import SamplingParams

ADMISSION = Admission(SamplingParams(max_tokens=1, seed=0), [4, 5, 6], ())


def test_input_batch_lays_out_a_mixed_step():
    batch = InputBatch(num_slots=4, block_size=4, max_model_len=16, device=torch.device("cpu"))
    first = SchedulerOutput([ScheduledSequence(None, 2, 0, 3, [11, 12, 13], 0, (9,), True, ADMISSION)], 3)
    batch.build(first)
    batch.store([2], torch.tensor([14]))
    mixed = SchedulerOutput(
        [
            ScheduledSequence(None, 2, 3, 1, None, 1, (), True),
            ScheduledSequence(None, 0, 0, 5, [21, 22, 23, 24, 25], 0, (3, 1), False, ADMISSION),
        ],
        6,
    )
    inputs = batch.build(mixed)
    batch.feed(inputs)
    forward = inputs.forward_batch
    assert forward.input_ids.tolist() == [14, 21, 22, 23, 24, 25]
    assert forward.positions.tolist() == [3, 0, 1, 2, 3, 4]
    assert forward.slot_mapping.tolist() == [39, 12, 13, 14, 15, 4]
    assert forward.block_tables.tolist() == [[9, 0], [3, 1]]
    assert forward.cu_seqlens_q.tolist() == [0, 1, 6]
    assert forward.context_lens.tolist() == forward.context_lens_cpu == [4, 5]
    assert forward.state_slots.tolist() == [2, 0]
    assert forward.logits_indices.tolist() == [0]
    assert {name: getattr(forward, name).dtype for name in ("input_ids", "positions", "slot_mapping")} == {
        "input_ids": torch.int64, "positions": torch.int64, "slot_mapping": torch.int64,
    }
    assert forward.cu_seqlens_q.dtype == forward.context_lens.dtype == forward.block_tables.dtype == torch.int32
