"""What LM Studio's SDKs ask for without a stream: the models, their facts, tokens, templates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sparkinfer.api.lmstudio.sdk_documents import (
    check_specifier,
    instance_facts,
    load_config,
    model_facts,
    sdk_error,
)
from sparkinfer.api.lmstudio.sdk_request import parse_template_call
from sparkinfer.api.models import ModelInfo
from sparkinfer.api.schema import Object, as_object, as_str, read_bool
from sparkinfer.errors import RequestError
from sparkinfer.request import TextPrompt
from workers.http_generations import Generations
from workers.http_prompts import Prompts
from workers.http_text_pool import PromptQuestion

NAMESPACES = ("diagnostics", "embedding", "files", "llm", "repository", "system")

_MANAGEMENT = frozenset({"unloadModel", "searchModels", "getModelDownloadOptions"})

Call = Callable[[Object, ModelInfo], Awaitable[Any]]


class LmStudioCalls:
    """Remote calls by namespace and endpoint."""

    def __init__(self, generations: Generations, prompts: Prompts) -> None:
        self._generations = generations
        self._prompts = prompts
        self._calls: dict[tuple[str, str], Call] = {
            ("system", "listDownloadedModels"): self._downloaded,
            ("llm", "listLoaded"): self._loaded,
            ("embedding", "listLoaded"): self._no_models,
            ("llm", "getModelInfo"): self._model_info,
            ("llm", "getLoadConfig"): self._load_config,
            ("llm", "tokenize"): self._tokenize,
            ("llm", "countTokens"): self._count_tokens,
            ("llm", "applyPromptTemplate"): self._apply_template,
        }

    async def call(self, namespace: str, endpoint: str, parameter: Object) -> Any:
        """The result; RequestError where there is none."""
        call = self._calls.get((namespace, endpoint))
        if call is not None:
            return await call(parameter, self._generations.accepting())
        if endpoint == "uploadFileBase64":
            raise RequestError(400, "this model cannot see: images and other files are not supported")
        if namespace == "embedding":
            raise RequestError(501, "this server makes no embeddings", code="embeddings_unsupported")
        if endpoint in _MANAGEMENT:
            raise RequestError(501, "this server has one model, and its operator chooses it")
        raise RequestError(404, f"there is no call {endpoint[:64]!r} in {namespace!r} here")

    def error(self, error: RequestError) -> dict[str, Any]:
        """`error` as the SDKs read it."""
        try:
            model = self._generations.accepting().model
        except RequestError:
            model = ""
        return sdk_error(error, model)

    async def _downloaded(self, _parameter: Object, info: ModelInfo) -> list[dict[str, Any]]:
        return [model_facts(info)]

    async def _loaded(self, _parameter: Object, info: ModelInfo) -> list[dict[str, Any]]:
        return [instance_facts(info)]

    async def _no_models(self, _parameter: Object, _info: ModelInfo) -> list[dict[str, Any]]:
        return []

    async def _model_info(self, parameter: Object, info: ModelInfo) -> dict[str, Any] | None:
        try:
            _check(parameter, info)
        except RequestError as error:
            if error.status == 404 and not read_bool(parameter, "throwIfNotFound", False):
                return None
            raise
        return instance_facts(info)

    async def _load_config(self, parameter: Object, info: ModelInfo) -> dict[str, Any]:
        _check(parameter, info)
        return load_config(info)

    async def _tokenize(self, parameter: Object, info: ModelInfo) -> dict[str, Any]:
        return {"tokens": await self._token_ids(parameter, info)}

    async def _count_tokens(self, parameter: Object, info: ModelInfo) -> dict[str, Any]:
        return {"tokenCount": len(await self._token_ids(parameter, info))}

    async def _token_ids(self, parameter: Object, info: ModelInfo) -> list[int]:
        _check(parameter, info)
        text = as_str(parameter.get("inputString"), "inputString")
        if not text:
            return []
        return (await self._prompts.encode(PromptQuestion(TextPrompt(text=text)))).token_ids

    async def _apply_template(self, parameter: Object, info: ModelInfo) -> dict[str, Any]:
        prompt = parse_template_call(parameter, info)
        return {"formatted": (await self._prompts.encode(PromptQuestion(prompt), with_text=True)).text}


def _check(parameter: Object, info: ModelInfo) -> None:
    check_specifier(as_object(parameter.get("specifier"), "specifier"), info, "specifier")
