"""The configuration files that we ship, and what is refused in one."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from sparkinfer.config import Config, load_config
from sparkinfer.config_environment import ENVIRONMENT
from sparkinfer.errors import ConfigError

OPS = Path(__file__).resolve().parent.parent / "ops"


@pytest.mark.parametrize("name", ["dev", "prod"])
def test_shipped_files_show_every_key(name: str) -> None:
    document = tomllib.loads((OPS / f"{name}.toml").read_text())
    shown = {(section, key) for section, table in document.items() for key in table}
    sections = {f.name: f.default_factory for f in dataclasses.fields(Config)}
    assert shown == {(name, f.name) for name, cls in sections.items() for f in dataclasses.fields(cls)}


@pytest.mark.parametrize("path", sorted(OPS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_files_load(path: Path) -> None:
    assert load_config(str(path), environment={}).server.port == 8080


def test_environment_names_existing_keys() -> None:
    for section, key in ENVIRONMENT.values():
        assert hasattr(getattr(Config(), section), key)


def test_precedence() -> None:
    names = ("QUANTIZATION", "HF_MODEL_ID", "OPENROUTER_PROVIDER")
    environment = dict(zip((f"SPARKINFER_{name}" for name in names), ("q1", "a/b", "1")))
    publish = load_config(None, ["publish.quantization=q2"], environment).publish
    assert (publish.quantization, publish.hugging_face_id, publish.openrouter_provider) == ("q2", "a/b", True)


def test_a_context_as_long_as_memory_allows_has_a_word(tmp_path: Path) -> None:
    path = tmp_path / "auto.toml"
    path.write_text('[model]\nmax_model_len = "auto"\n')
    assert load_config(str(path), (), {}) == Config()
    assert load_config(str(path), ["model.max_model_len=512"], {}).model.max_model_len == 512
    assert load_config(None, ["model.max_model_len=auto"], {}) == Config()


BAD = [
    ("publish.prompt_price_usd=1e-7", "US dollars"), ("publish.prompt_price_usd=-1", "US dollars"),
    ("publish.requests_per_minute=-1", "allowed"), ("server.path_prefix=llm", "path such as"),
    ("server.path_prefix=/llm/", "path such as"), ("server.cors_orgins=*", "did you mean cors_origins"),
    ("publisher.x=1", "did you mean publish"), ("server.max_unsent_kib=many", "an integer"), ("server.port", "--set"),
    ("model.max_model_len=automatic", "an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "message"), BAD)
def test_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override], {})
