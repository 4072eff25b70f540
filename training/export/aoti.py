"""A package of AOTInductor: torch.export's graph, compiled to a library of machine code. The way past TorchScript."""

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.errors import CompileError, SettingError
from training.export.compile import export_program, quiet

AVX2_BITS = 256


def check_compiler() -> None:
    """Raise SettingError if there is no C++ compiler, before hours are spent on training."""
    # Inductor takes seconds to import, and the other variants do without it.
    from torch._inductor import config  # noqa: PLC0415
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415
    from torch._inductor.exc import InvalidCxxCompiler  # noqa: PLC0415

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        tried = ", ".join(str(each) for each in config.cpp.cxx if each)
        raise SettingError(
            f"--aoti needs a C++ compiler, and there is none (looked for {tried}): install one (make system-packages), "
            "or name yours in the environment's CXX"
        ) from error


def make_package(model: nn.Module, images: Tensor, path: Path) -> None:
    """Leave the model at path, for 1 to MOST_IMAGES uint8 images [N, C, H, W] of the shape of `images`; N > 1.

    It takes a C++ compiler; see check_compiler. Raises CompileError if the model cannot be held in one graph.
    """
    program = export_program(model, images)
    options: dict[str, Any] = {
        # Weights become constants, packed for the kernels that use them.
        "freezing": True,
        # As many threads as are set where it is served, not as many as here.
        "cpp.dynamic_threads": True,
        # Not all that this very processor can do, but what compiled_for() says.
        "cpp.march": "",
        "cpp.simdlen": AVX2_BITS if compiled_for()["processor"] == "AVX2" else None,
    }
    try:
        with quiet():
            torch._inductor.aoti_compile_and_package(  # noqa: SLF001 - documented under this name
                program, package_path=str(path), inductor_configs=options
            )
    except RuntimeError as error:
        # Of a compiler's hundreds of lines the first says what is wrong.
        reason = str(error).strip().splitlines()[0]
        raise CompileError(f"AOTInductor cannot compile this model: {reason}") from error


def load_package(path: Path) -> Any:
    """Return what answers uint8 [N, C, H, W] with probabilities; it takes no compiler."""
    # torch would warn that this processor can do more than the package asks for.
    with quiet():
        return torch._inductor.aoti_load_package(str(path))  # noqa: SLF001 - documented under this name


def compiled_for() -> dict[str, str]:
    """Return the kind of processor that a package made here needs; on a lesser one, it would end its process."""
    here = torch.backends.cpu.get_cpu_capability()
    # AVX-512 is many kinds, and Inductor would use all that this processor has of it: VNNI, bfloat16, AMX.
    return {"machine": platform.machine(), "processor": "AVX2" if here == "AVX512" else here}
