"""Find the headers of Qualcomm's OpenCL ML SDK, which may not be shipped and is named by the user."""

from __future__ import annotations

from pathlib import Path

from tvmflow.support.errors import ToolchainError
from tvmflow.support.files import digest_of, sha256_of

_HEADER, _OPENCL = "CL/cl_qcom_ml_ops.h", "CL/cl.h"
_FOLDERS = ("", "include", "inc")  # of the SDK, where its releases have CL/


def find_headers(sdk: str | Path) -> tuple[Path, ...]:
    """Return the folders to include for CLML's header and OpenCL's. Raises ToolchainError with what to get."""
    root = Path(sdk).expanduser().absolute()
    folders = [root / name for name in _FOLDERS]
    own = next((folder for folder in folders if (folder / _HEADER).is_file()), None)
    if own is None:
        raise ToolchainError(
            f"clml_sdk: {sdk} has no {_HEADER}, nor has its include/ or inc/",
            "the folder of Qualcomm's OpenCL ML SDK",
            "get the SDK from Qualcomm (developer.qualcomm.com, Adreno OpenCL ML SDK), whose licence forbids to ship "
            "it; or leave clml_sdk out: our own kernels run on Adreno without it",
        )
    opencl = next((folder for folder in (own, *folders) if (folder / _OPENCL).is_file()), None)
    if opencl is None:
        raise ToolchainError(
            f"clml_sdk: {sdk} has {_HEADER}, which includes {_OPENCL}, but not that",
            "Khronos's headers of OpenCL beside it",
            f"copy them to {own / 'CL'} (github.com/KhronosGroup/OpenCL-Headers; Debian: opencl-c-headers)",
        )
    return (own,) if opencl == own else (own, opencl)


def headers_digest(sdk: str | Path) -> str:
    """Return the digest of all headers beside CLML's, part of the recipe of what is compiled with them; "" for none."""
    try:
        folders = find_headers(sdk)
    except ToolchainError:
        return ""
    files = {file for folder in folders for file in (folder / "CL").glob("*.h")}
    return digest_of({f"{file.parent.name}/{file.name}": sha256_of(file) for file in sorted(files)})
