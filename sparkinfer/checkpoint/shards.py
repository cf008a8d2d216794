"""Finds the files that make one model: a single file, a split set, or the only model of a folder.

Shards are named `NAME-00001-of-00003.gguf`. Knows names and the `split.*` keys; not what the tensors are for.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparkinfer.checkpoint.gguf_reader import Shard, read_shard
from sparkinfer.errors import CheckpointError

MAX_SHARDS = 1024
SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def read_shards(path: Path) -> list[Shard]:
    """All files of the model that `path` (any of its shards, or a folder holding one model) belongs to, in order."""
    given = _only_model(path) if path.is_dir() else path
    shard = read_shard(given)
    count = _split_number(shard, "split.count", 1)
    if count <= 1:
        return [shard]
    paths = _shard_paths(given, count)
    missing = [str(other) for other in paths if not other.exists()]
    if missing:
        raise CheckpointError(f"{given}: the model is split into {count} files, and {', '.join(missing)} is missing")
    shards = [read_shard(other, index) for index, other in enumerate(paths)]
    _check_set(shards)
    return shards


def _only_model(folder: Path) -> Path:
    """The model in a folder: its file or first shard. Vision projectors (`*mmproj*`) are not models."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf" and file.is_file())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed: {error.strerror or error}") from error
    models: dict[str, Path] = {}
    for file in files:
        if "mmproj" in file.name.lower():
            continue
        split = SPLIT_NAME.fullmatch(file.name)
        models.setdefault(split["stem"] if split else file.name, file)
    if not models:
        raise CheckpointError(f"{folder}: the folder holds no .gguf model")
    if len(models) > 1:
        names = ", ".join(file.name for file in models.values())
        raise CheckpointError(f"{folder}: the folder holds {len(models)} models ({names}); name one of them")
    return next(iter(models.values()))


def _shard_paths(given: Path, count: int) -> list[Path]:
    split = SPLIT_NAME.fullmatch(given.name)
    if split is None or int(split["count"]) != count:
        raise CheckpointError(
            f"{given}: split.count is {count}, so the file must be named like NAME-00001-of-{count:05d}.gguf"
        )
    suffix = given.name[-len(".gguf") :]
    return [given.with_name(f"{split['stem']}-{number:05d}-of-{count:05d}{suffix}") for number in range(1, count + 1)]


def _check_set(shards: list[Shard]) -> None:
    """The numbers that each shard carries agree with its name, and no tensor is in two of them."""
    owners: dict[str, Path] = {}
    for index, shard in enumerate(shards):
        number, count = _split_number(shard, "split.no", index), _split_number(shard, "split.count", 0)
        if (number, count) != (index, len(shards)):
            raise CheckpointError(
                f"{shard.path}: split.no and split.count are {number} and {count}, "
                f"its name says {index} and {len(shards)}"
            )
        for name in shard.tensors:
            if name in owners:
                raise CheckpointError(f"{shard.path}: tensor {name!r} is also in {owners[name]}")
            owners[name] = shard.path
    expected = _split_number(shards[0], "split.tensors.count", len(owners))
    if expected != len(owners):
        raise CheckpointError(
            f"{shards[0].path}: split.tensors.count is {expected}, the {len(shards)} files hold {len(owners)} tensors"
        )


def _split_number(shard: Shard, key: str, default: int) -> int:
    value = shard.metadata.get(key, default)
    limit = MAX_SHARDS if key != "split.tensors.count" else 1 << 32
    if not isinstance(value, int) or not 0 <= value <= limit:
        raise CheckpointError(f"{shard.path}: {key} is {value!r}; it must be an integer from 0 to {limit}")
    return int(value)
