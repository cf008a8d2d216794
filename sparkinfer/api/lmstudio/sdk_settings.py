"""Settings of a prediction as LM Studio's SDKs send them: layers of keys and values, the later layer over the earlier.

Many values are wrapped: {"checked": false} switches a setting off. Knows no conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkinfer.api.function_tool import check_unique
from sparkinfer.api.response_format import json_schema_format
from sparkinfer.api.sampling import read_stop_list
from sparkinfer.api.schema import Object, as_object, as_str, fail, read_bool, read_choice, read_list, read_object
from sparkinfer.api.tools import make_tool
from sparkinfer.request import GrammarFormat, JsonObjectFormat, OutputFormat, Tool, ToolPolicy

PREFIX = "llm.prediction."
MAX_STOPS = 64
_PLAIN_LAYER = "completeModeFormatting"  # asks for a text to be continued, by way of a template of its own
_INTEGERS = ("maxPredictedTokens", "topKSampling", "seed")  # which the SDK for Python writes as 40.0
_SHARED_NAMES = {
    "maxPredictedTokens": "max_tokens", "minPSampling": "min_p", "repeatPenalty": "repetition_penalty",
    "temperature": "temperature", "topKSampling": "top_k", "topPSampling": "top_p", "seed": "seed",
}  # fmt: skip


class Settings:
    """What the stack at `path` says, by keys without their prefix. RequestError names the key that is wrong."""

    def __init__(self, stack: Object, path: str) -> None:
        self.is_plain_text = False  # the history is one text to be continued, without a chat template
        self.values: dict[str, Any] = {}
        for i, item in enumerate(read_list(stack, "layers", path) or []):
            where = f"{path}.layers[{i}]"
            layer = as_object(item, where)
            if layer.get("layerName") == _PLAIN_LAYER:
                self.is_plain_text = True
                continue
            self._add(read_object(layer, "config", where) or {}, f"{where}.config")

    def sampling(self) -> dict[str, Any]:
        """Sampling controls under the names that every surface shares. No limit may be written as -1 or unchecked."""
        shared = {name: self._unwrapped(key) for key, name in _SHARED_NAMES.items()}
        if shared["max_tokens"] in (-1, False):
            shared["max_tokens"] = None
        return shared

    def stop(self) -> tuple[str, ...]:
        return read_stop_list(read_list(self.values, "stopStrings") or [], "stopStrings", MAX_STOPS)

    def output_format(self) -> OutputFormat | None:
        value = read_object(self.values, "structured") or {}
        match read_choice(value, "type", ("none", "json", "gbnf"), "structured"):
            case "json" if value.get("jsonSchema") is None:
                return JsonObjectFormat()
            case "json":
                return json_schema_format({"name": "answer", "schema": value["jsonSchema"]}, "structured")
            case "gbnf":
                return GrammarFormat(as_str(value.get("gbnfGrammar"), "structured.gbnfGrammar"))
        return None

    def tools(self) -> tuple[tuple[Tool, ...], ToolPolicy]:
        value = read_object(self.values, "tools") or {}
        if read_choice(value, "type", ("none", "toolArray"), "tools") != "toolArray":
            return (), ToolPolicy()
        tools = read_tools(read_list(value, "tools", "tools") or [], "tools.tools")
        if not tools:
            return (), ToolPolicy()
        return tools, ToolPolicy(choice="required" if read_bool(value, "force", False, "tools") else "auto")

    def reasoning_tags(self) -> tuple[str, str] | None:
        """What stands around reasoning in the text that the client keeps; None: reasoning is not told apart."""
        value = read_object(self.values, "reasoning.parsing") or {}
        if not read_bool(value, "enabled", True, "reasoning.parsing"):
            return None
        start, end = value.get("startString") or "<think>", value.get("endString") or "</think>"
        return as_str(start, "reasoning.parsing.startString"), as_str(end, "reasoning.parsing.endString")

    def _add(self, config: Object, path: str) -> None:
        for k, item in enumerate(read_list(config, "fields", path) or []):
            field = as_object(item, f"{path}.fields[{k}]")
            key = as_str(field.get("key"), f"{path}.fields[{k}].key")
            if key == f"{PREFIX}promptTemplate":
                fail("promptTemplate", "the model's own chat template is used, and no other")
            if key.startswith(PREFIX):
                self.values[key.removeprefix(PREFIX)] = field.get("value")

    def _unwrapped(self, key: str) -> Any:
        value = self.values.get(key)
        if isinstance(value, Mapping) and "checked" in value:
            value = value.get("value") if read_bool(value, "checked", False, key) else None
        if key in _INTEGERS and isinstance(value, float) and value.is_integer():
            return int(value)
        return value


def read_tools(items: list[Any], path: str) -> tuple[Tool, ...]:
    """Functions as OpenAI defines them."""
    tools = []
    for i, item in enumerate(items):
        where = f"{path}[{i}]"
        tool = as_object(item, where)
        read_choice(tool, "type", ("function",), where)
        tools.append(make_tool(as_object(tool.get("function"), f"{where}.function"), f"{where}.function"))
    return check_unique(tools, path)


def echoed_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as the configuration that an answer was made with."""
    return {"fields": [{"key": PREFIX + key, "value": value} for key, value in values.items()]}
