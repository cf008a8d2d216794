"""The served model, and errors, as LM Studio's SDKs read them. Knows no process: the facts arrive as a ModelInfo."""

from __future__ import annotations

from typing import Any

from sparkinfer.api.model_facts import check_model_name, parameter_size
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.schema import Object, as_str, join, read_choice, read_object, read_str
from sparkinfer.errors import RequestError

_NOT_FOUND = "generic.noModelMatchingQuery"


def model_facts(info: ModelInfo) -> dict[str, Any]:
    """A model on disk. What is not known is left out: the SDK for JavaScript takes no null for it."""
    size = parameter_size(info)
    return {
        "type": "llm",
        "modelKey": info.model,
        "format": "gguf",
        "displayName": info.model,
        "path": info.model,
        "sizeBytes": info.num_bytes,
        **({"paramsString": size} if size else {}),
        "architecture": info.architecture,
        "vision": False,
        "trainedForToolUse": True,
        "maxContextLength": info.max_model_len,
    }


def instance_facts(info: ModelInfo) -> dict[str, Any]:
    """A model in memory."""
    return {
        **model_facts(info),
        "identifier": info.model,
        "instanceReference": info.model,
        "contextLength": info.max_model_len,
    }


def load_config(info: ModelInfo) -> dict[str, Any]:
    """What the model was loaded with."""
    return {"fields": [{"key": "llm.load.contextLength", "value": info.max_model_len}]}


def check_specifier(specifier: Object, info: ModelInfo, path: str) -> None:
    """RequestError(404) unless a query, or a reference to an instance, can mean the one model."""
    if read_choice(specifier, "type", ("query", "instanceReference"), path) == "instanceReference":
        where = join(path, "instanceReference")
        check_model_name(info, as_str(specifier.get("instanceReference"), where))
        return
    query = read_object(specifier, "query", path) or {}
    where = join(path, "query")
    for key in ("identifier", "path"):
        name = read_str(query, key, where)
        if name:
            check_model_name(info, name)
    if query.get("vision") is True or query.get("domain") not in (None, "llm"):
        raise RequestError(404, f"the one model here, {info.model!r}, writes text", code="model_not_found")


def sdk_error(error: RequestError, model: str = "") -> dict[str, Any]:
    """What an SDK makes its exception of. model: the one that is served, "" while there is none."""
    document: dict[str, Any] = {"title": error.message, "rootTitle": error.message}
    if error.code == "model_not_found":
        loaded = [model] if model else []
        document["displayData"] = {
            "code": _NOT_FOUND, "query": {}, "loadedModelsSample": loaded, "totalLoadedModels": len(loaded),
        }  # fmt: skip
    else:
        document["errorData"] = {"status": error.status, "code": error.code, "param": error.param}
    return document
