"""Compile the Triton kernels of the loss for an H100 or H200, which needs no GPU: python compile_kernels.py.

The interpreter, in which other tests run kernels, knows no types: what changes its type in a loop fails only here.
"""

import itertools

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from howsure.kernels import evidential_loss_triton

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {"mask": "*i1"}  # the others point to float32


def compile_kernel(kernel, numbers, present, warps, **constants):
    """Compile a kernel for arguments: integers and floats by name, pointers that are there; other pointers are None."""
    signature, given = {}, {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name], given[name] = "constexpr", constants[name]
        elif name in numbers:
            signature[name] = numbers[name]
        elif present is None or name in present:
            signature[name] = POINTERS.get(name, "*fp32")
        else:
            signature[name], given[name] = "constexpr", None
    source = ASTSource(fn=kernel, signature=signature, constexprs=given)
    assert triton.compile(source, target=HOPPER, options={"num_warps": warps}).asm["cubin"]


def loss(inner, penalty, present, weight):
    size, tiles, warps = evidential_loss_triton._shape(1 << 24, inner)
    numbers = dict.fromkeys(("outer", "inner", "per_map"), "i32")
    numbers |= dict.fromkeys(("weight_number", "scale_number"), "fp32")
    present = {"raw", "y", "gradient", *present, *(["weight"] if weight else [])}
    constants = {"PENALTY": penalty, "WEIGHT": weight, "PLANAR": inner > 1, "FAST": True, "SIZE": size, "TILES": tiles}
    compile_kernel(evidential_loss_triton._loss_and_gradient, numbers, present, warps, **constants)


if __name__ == "__main__":
    for inner, penalty in itertools.product((1, 20), (0, 1, 2)):
        loss(inner, penalty, ("sums",), 0)
    for inner, weight in itertools.product((1, 20), (1, 2)):
        loss(inner, 1, ("losses", "mask", "counts", "scale", "upstream"), weight)
