"""Runs Triton kernels in its interpreter where there is no accelerator; must be set before a kernel's module loads."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
