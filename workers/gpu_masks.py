"""The mask table as the engine reads it. Knows rows and positions; never who writes them."""

from __future__ import annotations

from typing import Any

from ipc.mask_table import MaskTable


class TableMasks:
    """A MaskSource."""

    def __init__(self, table: MaskTable) -> None:
        self._table = table

    def ready(self, mask_row: int, position: int) -> Any | None:
        """See MaskSource."""
        return self._table.row(mask_row) if self._table.ready(mask_row, position) else None

    def forced(self, mask_row: int, position: int) -> list[int]:
        """See MaskSource."""
        return self._table.forced(mask_row) if self._table.ready(mask_row, position) else []
