"""Models of the Hugging Face hub: picks the GGUF files of one quantisation and downloads them, shards and all.

What is complete on the disk is used without asking the hub. Knows names of files; not what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import huggingface_hub
from huggingface_hub import errors as hub_errors

from sparkinfer.checkpoint.disk_space import check_free_bytes
from sparkinfer.checkpoint.shards import SPLIT_NAME
from sparkinfer.errors import CheckpointError

# The base class of its HTTP library's errors (httpx or requests, by version), which the hub does not wrap.
_TRANSPORT_ERROR: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]  # there without being exported
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4))$", re.IGNORECASE
)


def fetch_hub_model(reference: str, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The file (or first shard) of OWNER/REPO:QUANT, downloaded if it isn't there.

    QUANT is compared without regard to case, with the end of the file's name; it may be left out where the repository
    holds one model. Raises CheckpointError: no such repository, no match (with what there is), several, or no network.
    """
    repository, _, quant = reference.partition(":")
    if not _REPOSITORY.fullmatch(repository):
        raise CheckpointError(f"hf:{reference}: a hub model is written hf:OWNER/REPO:QUANT")
    folder = cache_dir / "hf" / repository
    present = _models(_names_in(folder))
    exact = [files for stem, files in present.items() if quant and _quant(stem) == quant.upper() and _is_whole(files)]
    if len(exact) == 1:
        return folder / exact[0][0]
    try:
        sizes = _list_repository(repository)
    except CheckpointError:
        whole = {stem: files for stem, files in present.items() if _is_whole(files)}
        if not whole:
            raise
        return folder / _choose(whole, quant, reference)[0]
    files = _choose(_models(list(sizes)), quant, reference)
    _download(repository, files, sizes, folder, progress)
    return folder / files[0]


def _names_in(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*.gguf") if path.is_file()]


def _models(names: list[str]) -> dict[str, list[str]]:
    """Stem -> its files in order. Vision projectors and importance matrices are not models."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix.lower() != ".gguf" or path.name.lower().startswith(("mmproj", "imatrix")):
            continue
        split = SPLIT_NAME.fullmatch(path.name)
        models.setdefault(str(path.with_name(split["stem"] if split else path.stem)), []).append(name)
    return models


def _is_whole(files: list[str]) -> bool:
    split = SPLIT_NAME.fullmatch(PurePosixPath(files[0]).name)
    return split is None or len(files) == int(split["count"])


def _quant(stem: str) -> str:
    found = _QUANT.search(stem)
    return found[1].upper() if found else ""


def _choose(models: dict[str, list[str]], quant: str, reference: str) -> list[str]:
    """The files of the one model that `quant` names; an exact label comes before one that merely ends with it."""
    if not models:
        raise CheckpointError(f"hf:{reference}: the repository holds no .gguf model")
    exact = [stem for stem in models if _quant(stem) == quant.upper()]
    ending = [stem for stem in models if stem.upper().endswith(quant.upper())]
    matching = (exact or ending) if quant else list(models)
    if len(matching) == 1:
        return models[matching[0]]
    available = ", ".join(sorted({_quant(stem) or stem for stem in models}))
    if not matching:
        raise CheckpointError(f"hf:{reference}: no file matches {quant!r}; these are there: {available}")
    if not quant:
        raise CheckpointError(f"hf:{reference}: add :QUANT, one of {available}")
    raise CheckpointError(f"hf:{reference}: {quant!r} matches several models: {', '.join(matching)}")


def _list_repository(repository: str) -> dict[str, int]:
    """File name -> bytes (0 where the hub does not say)."""
    try:
        info = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
    except hub_errors.GatedRepoError as error:
        raise CheckpointError(
            f"hf:{repository}: the repository is gated; accept its terms and log in with `hf auth login`"
        ) from error
    except hub_errors.RepositoryNotFoundError as error:
        raise CheckpointError(f"hf:{repository}: no such repository, or it is private") from error
    except (_TRANSPORT_ERROR, OSError) as error:
        raise CheckpointError(f"hf:{repository}: the hub cannot be reached: {error}") from error
    return {file.rfilename: file.size or 0 for file in info.siblings or []}


def _download(
    repository: str, files: list[str], sizes: dict[str, int], folder: Path, progress: Callable[[str], None]
) -> None:
    """huggingface_hub draws the progress bar, resumes what was cut off, and locks against other processes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [name for name in files if not (folder / name).exists()]
        check_free_bytes(folder, sum(sizes[name] for name in missing))
        for name in missing:
            progress(f"hf:{repository}: downloading {name} ({sizes[name] >> 20} MiB)")
            huggingface_hub.hf_hub_download(repository, name, local_dir=folder)
    except (_TRANSPORT_ERROR, OSError) as error:
        raise CheckpointError(f"hf:{repository}: cannot be downloaded to {folder}: {error}") from error
