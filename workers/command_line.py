"""The options of `python supervisor.py`. Knows names; the values are the configuration's business."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version

SHORTCUTS = {
    "--model": "model.path",
    "--model-name": "model.name",
    "--tokenizer": "model.tokenizer",
    "--ctx": "model.max_model_len",
    "--host": "server.host",
    "--port": "server.port",
    "--api-key": "server.api_keys",
}


def _version() -> str:
    try:
        return version("sparkinfer")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "development"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The options; argparse itself answers --help, --version and what it does not know."""
    parser = argparse.ArgumentParser(prog="supervisor.py", description="Serve a GGUF model over the OpenAI API.")
    parser.add_argument("--config", metavar="FILE", help="TOML configuration; without it the embedded default model")
    for option, key in SHORTCUTS.items():
        names = ("-m", option) if option == "--model" else (option,)
        parser.add_argument(*names, dest=key, metavar="VALUE", help=f"short for --set {key}=VALUE")
    parser.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="override one setting")
    parser.add_argument("--check-config", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"sparkinfer {_version()}")
    return parser.parse_args(argv)


def overrides(arguments: argparse.Namespace) -> list[str]:
    """The shortcuts and then the --set values, as load_config takes them."""
    given = ((key, getattr(arguments, key)) for key in SHORTCUTS.values())
    return [*(f"{key}={value}" for key, value in given if value is not None), *arguments.set]
