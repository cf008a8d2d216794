"""Tells one model file from another without reading all of it. Knows metadata and a few bytes; never paths or times."""

from __future__ import annotations

import hashlib

from sparkinfer.checkpoint.gguf import GGUFFile

SAMPLED_TENSORS = 32
SAMPLED_BYTES = 4096  # at the beginning and the end of each


def fingerprint(gguf: GGUFFile, *others: object) -> str:
    """32 hexadecimal digits over metadata, tensor table, some of the weights, and the text of `others`.

    A copy of the file elsewhere has the same; a file that was quantised or trained otherwise has another one.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(gguf.metadata):
        digest.update(repr((key, gguf.metadata[key])).encode())
    names = sorted(gguf.tensors)
    for name in names:
        tensor = gguf.tensors[name]
        digest.update(repr((name, tensor.shape, int(tensor.ggml_type), tensor.num_bytes)).encode())
    for name in names[:: max(1, len(names) // SAMPLED_TENSORS)]:
        content = gguf.data(name).reshape(-1)
        digest.update(content[:SAMPLED_BYTES].tobytes())
        digest.update(content[-SAMPLED_BYTES:].tobytes())
    digest.update(repr(others).encode())
    return digest.hexdigest()
