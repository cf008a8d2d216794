"""Validators for the schemas of an OpenAPI document."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator


class Schemas:
    """The components of one document, by name."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = {"components": document["components"]}
        self._made: dict[str, Draft202012Validator] = {}

    def validator(self, name: str) -> Draft202012Validator:
        if name not in self._made:
            schema = {**self._components, "$ref": f"#/components/schemas/{name}"}
            Draft202012Validator.check_schema(schema)
            self._made[name] = Draft202012Validator(schema)
        return self._made[name]

    def problems(self, name: str, value: Any) -> list[str]:
        return [f"{error.json_path}: {error.message}"[:300] for error in self.validator(name).iter_errors(value)]
