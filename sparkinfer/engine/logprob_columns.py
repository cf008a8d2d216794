"""Log-probabilities on their way from the logits to the host. Knows rows of logits; never sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sparkinfer.engine.scheduler_output import Logprobs
from sparkinfer.engine.upload import to_device


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """What a step's rows have to say, row by row of those that were asked.

    num_logprobs:  [num_rows] alternatives, None for rows that want no logprobs
    chosen:        [num_asked] f32, of the chosen tokens
    top_ids:       [num_asked, most] int64, best first
    top_logprobs:  [num_asked, most] f32
    """

    num_logprobs: list[int | None]
    chosen: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def of(cls, logits: Tensor, token_ids: Tensor, num_logprobs: list[int | None]) -> LogprobColumns:
        """Log-softmax in f32 of the model's own logits: of the chosen tokens, and of the best. Only enqueues.

        logits:     [num_rows, vocab_size] f32
        token_ids:  [num_rows] int64
        """
        rows = [row for row, wanted in enumerate(num_logprobs) if wanted is not None]
        if len(rows) < len(num_logprobs):
            index = to_device(np.array(rows, np.int64), logits.device)
            logits, token_ids = logits.index_select(0, index), token_ids.index_select(0, index)
        logprobs = torch.log_softmax(logits, dim=-1)  # row by row; logsumexp may add one long row by several threads
        most = min(max(num_logprobs[row] or 0 for row in rows), logits.shape[1])
        top = logprobs.topk(most, dim=-1)
        return cls(num_logprobs, logprobs.gather(1, token_ids[:, None])[:, 0], top.indices, top.values)

    def to_host(self) -> LogprobColumns:
        """Copies in pinned memory, there once the current stream has come so far."""

        def copy(source: Tensor) -> Tensor:
            return torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source, non_blocking=True)

        if not self.chosen.is_cuda:
            return self
        return replace(
            self, chosen=copy(self.chosen), top_ids=copy(self.top_ids), top_logprobs=copy(self.top_logprobs)
        )

    def rows(self) -> list[Logprobs | None]:
        """[num_rows]; waits for the device unless everything is on the host already."""
        found = zip(self.chosen.tolist(), self.top_ids.tolist(), self.top_logprobs.tolist())
        result: list[Logprobs | None] = []
        for wanted in self.num_logprobs:
            if wanted is None:
                result.append(None)
                continue
            chosen, top_ids, top_logprobs = next(found)
            result.append(Logprobs(chosen, top_ids[:wanted], top_logprobs[:wanted]))
        return result
