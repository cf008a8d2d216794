"""The sampling controls that a model file recommends (general.sampling.*). Knows keys and ranges; never a request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkinfer.checkpoint.metadata import MAX_INTEGER, MetadataReader
from sparkinfer.errors import CheckpointError

logger = logging.getLogger("sparkinfer.checkpoint")

# Our name -> the file's, and the highest value that a request may ask for; the lowest is 0.
_NUMBERS = {"temperature": ("temp", 2.0), "top_p": ("top_p", 1.0), "min_p": ("min_p", 1.0)}


def sampling_defaults(metadata: Mapping[str, Any], path: Path) -> dict[str, float]:
    """temperature, top_k, top_p and min_p, as far as the file has them.

    A value that no request could ask for is left out with a warning: a model need not fail over a recommendation.
    """
    reader = MetadataReader(metadata, path)
    defaults: dict[str, float] = {}
    for name, key in (("top_k", "top_k"), *((name, key) for name, (key, _) in _NUMBERS.items())):
        full_key = f"general.sampling.{key}"
        if full_key not in reader:
            continue
        try:
            if name == "top_k":
                defaults[name] = reader.integer(full_key, high=MAX_INTEGER)
            else:
                defaults[name] = reader.number(full_key, low=0.0, high=_NUMBERS[name][1])
        except CheckpointError as error:
            logger.warning("%s; it is ignored", error)
    return defaults
