"""A process that compiles the kernels which a model will ask for, and ends. What it leaves out is compiled when needed.

Knows which parts models have; never reads one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ipc.peer_death import die_with_parent
from kernels.cpu import attention, compile_cache, delta_rule, moe, rows
from kernels.cpu.dot import dot_instruction
from kernels.cpu.embed import embed_kernel
from kernels.cpu.matmul import DENSE, matmul_kernel
from kernels.cpu.packed_layout import LAYOUTS
from kernels.cpu.program import Kernel, jit_help, jit_lead
from kernels.cpu.rope_store import rope_store_kernel

QUANTISED, FLOATS = {layout.name for layout in LAYOUTS}, {name.upper(): name for name in DENSE}


def kernels_for(wishes: dict[str, Any]) -> list[Kernel]:
    """What takes longest first; as workers.compile_ahead words the wishes."""
    kinds = {_kind_of(name) for name in wishes["types"]}
    found = [attention.attend_kernel(wishes["pool"]), *(matmul_kernel(kind) for kind in sorted(kinds))]
    found += [rows.norm_kernel, rope_store_kernel, attention.finish_kernel, rows.activate_kernel, jit_lead, jit_help]
    if wishes["embedding"]:
        found.append(embed_kernel(_kind_of(wishes["embedding"])))
    if wishes["has_state"]:
        found += [
            delta_rule.conv_kernel, delta_rule.gates_kernel, delta_rule.delta_kernel, delta_rule.gated_norm_kernel,
        ]
    if wishes["has_experts"]:
        found += [moe.route_kernel, moe.group_kernel, moe.scatter_kernel, moe.combine_kernel]
    return found


def _kind_of(type_name: str) -> str:
    """What kernels see a type as."""
    return type_name if type_name in QUANTISED else FLOATS.get(type_name, "f32")


def main() -> None:
    wishes = json.loads(sys.argv[1])
    die_with_parent(wishes["supervisor_pid"])
    if dot_instruction() is None:
        return
    compile_cache.use_folder(Path(wishes["folder"]))
    for kernel in kernels_for(wishes):
        kernel.prepare()


if __name__ == "__main__":
    main()
