"""How much each client was served. Knows client ids and tokens; never sequences or queues."""

from __future__ import annotations

from collections import Counter


class FairShare:
    """One counter of served tokens per client, after the virtual token counter of arXiv:2401.00588.

    The client with the smallest counter is served next. One that comes back is lifted to the smallest counter among
    the active ones: time spent idle earns no credit, and a counter that does not grow becomes the smallest in the end,
    so that no client waits for ever. Clients are API keys, so that their number is bounded.
    """

    def __init__(self) -> None:
        self._served: dict[int, int] = {}
        self._num_open: Counter[int] = Counter()

    def enter(self, client_id: int) -> None:
        """A sequence of this client was queued."""
        if not self._num_open[client_id]:
            floor = min((self._served[other] for other, num in self._num_open.items() if num), default=0)
            self._served[client_id] = max(self._served.get(client_id, 0), floor)
        self._num_open[client_id] += 1

    def leave(self, client_id: int) -> None:
        """A sequence of this client ended."""
        self._num_open[client_id] -= 1

    def charge(self, client_id: int, num_tokens: int) -> None:
        """This client was given room for `num_tokens` more tokens, in units of blocks."""
        self._served[client_id] += num_tokens

    def served(self, client_id: int) -> int:
        """The client's counter."""
        return self._served[client_id]
