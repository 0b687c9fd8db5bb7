"""Test that timeout_s of a GPU target becomes the limit of its host code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.gpu_codegen.test_networks import gpu_backend


@pytest.mark.parametrize(
    ("api", "option"), [("opencl", "-DHANGS_MS=90000"), ("vulkan", "-DGPU_TIMEOUT_NS=90000000000")]
)
def test_the_limit_of_a_target_is_that_of_its_library(api: str, option: str) -> None:
    backend: Any = gpu_backend(api)
    name, per_second = {"opencl": ("HANGS_MS", 1e3), "vulkan": ("GPU_TIMEOUT_NS", 1e9)}[api]
    assert backend.defines(name, per_second) == ()
    longer = replace(backend.target, options={**backend.target.options, "timeout_s": 90.0})
    assert type(backend)(longer).defines(name, per_second) == (option,)
