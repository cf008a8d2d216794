"""Measurements as a table, JSON or CSV. Knows numbers and names; never how they came about."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkinfer.bench.case import Case

COLUMNS = ("test", "tok/s", "bytes/step", "GB/s", "of copy bandwidth")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all measurements share.

    copy_bandwidth: bytes a second, read plus written
    """

    model: str
    architecture: str
    model_bytes: int
    parameters: int
    device: str
    backend: str
    kv_dtype: str
    threads: int
    copy_bandwidth: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """seconds: one per repetition; num_bytes: touched in each, over num_steps steps."""

    case: Case
    seconds: tuple[float, ...]
    num_steps: int
    num_bytes: float

    @property
    def rates(self) -> list[float]:
        """Tokens a second of every repetition, all sequences together."""
        return [self.case.total_tokens / seconds for seconds in self.seconds]

    @property
    def rate(self) -> float:
        return statistics.mean(self.rates)

    @property
    def rate_deviation(self) -> float:
        """Of the sample; 0 for one repetition."""
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.num_bytes / statistics.mean(self.seconds)


def render(style: str, setting: Setting, measurements: Sequence[Measurement]) -> str:
    """style: "json" or "csv"; ends without a newline. A table is printed line by line as it grows."""
    records = [_record(setting, measurement) for measurement in measurements]
    if style == "json":
        return json.dumps({"setting": asdict(setting), "results": records}, indent=2)
    shared = {name: value for name, value in asdict(setting).items() if name != "copy_bandwidth"}
    rows = [{**shared, **record, "seconds": " ".join(f"{s:.6f}" for s in record["seconds"])} for record in records]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def heading(setting: Setting) -> str:
    return (
        f"{setting.model}: {setting.architecture}, {setting.parameters / 1e6:,.1f} million parameters, "
        f"{setting.model_bytes / 1e9:.2f} GB\n{setting.device}, {setting.backend}, {setting.kv_dtype} cache, "
        f"{setting.threads} threads; copies at {setting.copy_bandwidth / 1e9:,.1f} GB/s\n"
    )


def table_head() -> tuple[str, str]:
    return "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"


def table_line(setting: Setting, measurement: Measurement) -> str:
    cells = (
        measurement.case.name,
        f"{measurement.rate:,.2f} ± {measurement.rate_deviation:,.2f}",
        _si_bytes(measurement.num_bytes / measurement.num_steps),
        f"{measurement.bytes_per_second / 1e9:,.1f}",
        f"{measurement.bytes_per_second / setting.copy_bandwidth:.1%}",
    )
    return "| " + " | ".join(cells) + " |"


def _record(setting: Setting, measurement: Measurement) -> dict[str, Any]:
    case = measurement.case
    return {
        "test": case.name,
        "kind": "prefill" if case.is_prefill else "decode",
        "num_tokens": case.num_tokens,
        "depth": case.depth,
        "num_seqs": case.num_seqs,
        "tokens_per_second": measurement.rate,
        "tokens_per_second_sd": measurement.rate_deviation,
        "seconds": list(measurement.seconds),
        "steps": measurement.num_steps,
        "bytes": measurement.num_bytes,
        "bytes_per_second": measurement.bytes_per_second,
        "share_of_copy_bandwidth": measurement.bytes_per_second / setting.copy_bandwidth,
        "copy_bandwidth": setting.copy_bandwidth,
    }


def _si_bytes(count: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 1e3:.2f} kB"
