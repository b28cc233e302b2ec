"""Compile the Triton kernel of small networks for an H100 or H200: python compile_small_networks.py. It needs no GPU.

Other tests run the kernel in Triton's interpreter, which has no types. A variable that changes its type in a loop fails
only here.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from howsure_paper import small_networks

HOPPER = GPUTarget("cuda", 90, 32)


def compile_networks(inputs, hidden, batch, evidential, dropout, bayes):
    """Compile the kernel for networks of one hidden layer."""
    units = max(16, triton.next_power_of_2(hidden))
    tile = small_networks._tile(batch, units, bayes)
    numbers = dict.fromkeys(("steps", "batch", "size"), "i32") | dict.fromkeys(("ascent", "aim"), "fp32")
    constants = {"F": inputs, "H": hidden, "O": 4 if evidential else 2, "HP": units, "B": tile}
    constants["FP"] = max(2 if tile == 1 else 16, triton.next_power_of_2(inputs))
    constants |= {"EVIDENTIAL": evidential, "DROPOUT": dropout, "BAYES": bayes, "FAST": True}
    signature = {}
    for name in small_networks._steps.arg_names:
        pointer = "*i64" if name == "chosen" else "*fp32"
        signature[name] = "constexpr" if name in constants else numbers.get(name, pointer)
    source = ASTSource(fn=small_networks._steps, signature=signature, constexprs=constants)
    assert triton.compile(source, target=HOPPER, options={"num_warps": 8 if tile > 1 else 4}).asm["cubin"]


if __name__ == "__main__":
    for batch in (1, 64):
        compile_networks(8, 50, batch, True, False, False)
        compile_networks(13, 50, batch, False, True, False)
        compile_networks(13, 50, batch, False, False, True)
