"""Compile the Triton kernels of the loss for an H100 or H200, which needs no GPU: python compile_kernels.py.

The interpreter, in which other tests run kernels, knows no types: what changes its type in a loop fails only here.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from howsure.kernels import evidential_loss_triton

HOPPER = GPUTarget("cuda", 90, 32)


def compile_kernel(kernel, numbers, present, warps, **constants):
    """Compile a kernel for arguments: integers and floats by name, pointers that are there; other pointers are None."""
    signature, given = {}, {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name], given[name] = "constexpr", constants[name]
        elif name in numbers:
            signature[name] = numbers[name]
        elif present is None or name in present:
            signature[name] = "*fp32"
        else:
            signature[name], given[name] = "constexpr", None
    source = ASTSource(fn=kernel, signature=signature, constexprs=given)
    assert triton.compile(source, target=HOPPER, options={"num_warps": warps}).asm["cubin"]


def loss(penalty, present, weight=0, counts=0):
    numbers = {"size": "i32", "weight_number": "fp32", "count_number": "fp32"}
    present = {"raw", "y", "gradient", *present, *(["weight"] if weight else []), *(["counts"] if counts else [])}
    constants = {"PENALTY": penalty, "WEIGHT": weight, "COUNTS": counts, "FAST": True}
    constants |= {"SIZE": evidential_loss_triton.SIZE, "TILES": evidential_loss_triton.TILES}
    kernel, warps = evidential_loss_triton._loss_and_gradient, evidential_loss_triton.WARPS
    compile_kernel(kernel, numbers, present, warps, **constants)


if __name__ == "__main__":
    for penalty in (0, 1, 2):
        loss(penalty, ("sums",))
    for form in (1, 2):
        loss(1, ("losses",), weight=form, counts=form)
