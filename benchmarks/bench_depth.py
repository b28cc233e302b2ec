"""Training throughput of the evidential U-Net, and what its answer costs beside a plain U-Net's.

    python benchmarks/bench_depth.py [--device cuda] [--batch 32] [--steps 400] [--width 32]

Images of 160×128 (random ones: the arithmetic is the same) lie on the device. «plain» is the usual step: eager, Adam,
no augmentation, maps enlarged and put beside the others before they are convolved; once in float32 throughout, and once
as torch comes, which lets cuDNN round the inputs of convolutions to TF32. «ours» is what `fit_images` runs:
augmentation, bfloat16 and channels last under one compiled and captured step, with gradient clipping. The limit:
convolutions of 7.0 GFLOP an image forwards (8.7 the usual way), 21 with the way back, and about 0.1 GB of maps moved;
on an H200 either alone would allow more than 15,000 images a second.

An answer is the prediction and, of the evidential network, both variances; eager, or compiled and captured, in which
form a depth camera would ask. The two networks take turns.
"""

import argparse
import itertools
import platform
import statistics
from collections.abc import Callable

import torch
from torch.nn.functional import interpolate

import evidentia as ev
from evidentia.methods import Evidential, ImageRecipe, LeastSquares, Pairs
from evidentia.methods.images import answers, fastest_convolutions, loss_on
from evidentia.nn import UNet, unet
from evidentia.reproduce.timing import captured, wait
from evidentia.training import ImageBatches, Settings, resolve_device, train


def enlarge_and_convolve(x: torch.Tensor, skip: torch.Tensor, conv: torch.nn.Conv2d) -> torch.Tensor:
    """What the decoder does, as it is usually written."""
    return conv(torch.cat([interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))


def plain_step(pairs: Pairs, width: int, batch: int, steps: int, device: torch.device, tf32: bool) -> float:
    """Seconds a step, the usual way."""
    torch.backends.cudnn.allow_tf32 = tf32
    ours, unet._convolve_doubled = unet._convolve_doubled, enlarge_and_convolve
    network = UNet(width=width, seed=0).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    batches = ImageBatches(pairs.images, pairs.maps, batch)
    times = []
    for _ in range(steps + 5):
        started = wait(device)
        x, y = batches.next()
        optimizer.zero_grad()
        nig = ev.NormalInverseGamma.from_raw(network(x.contiguous()), dim=1)
        ev.evidential_loss(nig, y, 0.01).backward()
        optimizer.step()
        times.append(wait(device) - started)
    torch.backends.cudnn.allow_tf32, unet._convolve_doubled = True, ours
    return statistics.median(times[5:])


def our_step(pairs: Pairs, width: int, batch: int, steps: int, device: torch.device) -> float:
    """Seconds a step of the training loop, between its evaluations."""
    recipe = ImageRecipe(width=width)
    method = Evidential(0.01)
    network = recipe.network(4, 0).to(device, memory_format=torch.channels_last)
    batches = ImageBatches(pairs.images, pairs.maps, batch, 0, recipe.augmentation)
    ends: list[float] = []

    def watch(_) -> torch.Tensor:
        ends.append(wait(device))
        return torch.zeros(1, device=device)

    every = max(1, steps // 4)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    settings = Settings(steps=5 * every, evaluate_every=every, precision=precision)
    with fastest_convolutions():
        train(network, batches, loss_on(method, device), validate=watch, settings=settings)
    return statistics.median(b - a for a, b in itertools.pairwise(ends)) / every


def question(method, width: int, images: torch.Tensor, fast: bool, device: torch.device) -> Callable[[], object]:
    """A call that answers these images: for the evidential network with its prediction and both variances."""
    network = UNet(method.outputs, width=width, seed=0).to(device, memory_format=torch.channels_last).eval()
    precision = "bfloat16" if device.type == "cuda" else "float32"

    def ask():
        answer = answers(method, [network], images, precision=precision)
        if isinstance(answer, ev.NormalInverseGamma):
            return answer.prediction, answer.aleatoric_variance, answer.epistemic_variance
        return answer.loc

    if not fast:
        return ask
    torch._dynamo.reset()  # or the second network would find the first one's code, made for any shape
    return captured(torch.compile(ask, dynamic=False), device)


def forward_ratio(width: int, images: torch.Tensor, fast: bool, device: torch.device) -> float:
    """Time of an evidential answer over that of a plain one."""
    with torch.no_grad(), fastest_convolutions():
        asked = [question(method, width, images, fast, device) for method in (Evidential(), LeastSquares())]
        times = []
        for _ in range(60 if device.type == "cuda" else 10):
            times.append([])
            for ask in asked:
                started = wait(device)
                ask()
                times[-1].append(wait(device) - started)
    return statistics.median(a / b for a, b in times[len(times) // 5 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args()
    device = resolve_device(options.device)
    images = torch.randint(0, 256, (512, 128, 160, 3), dtype=torch.uint8, device=device)
    pairs = Pairs(images, torch.rand(512, 128, 160, device=device))
    print(f"device: {torch.cuda.get_device_name() if device.type == 'cuda' else platform.machine()}")
    setting = (pairs, options.width, options.batch, options.steps, device)
    cuda = device.type == "cuda"
    exact = plain_step(*setting, tf32=False)
    usual = plain_step(*setting, tf32=True) if cuda else exact
    ours = our_step(*setting)
    if cuda:
        rates = [f"{options.batch / seconds:.0f}" for seconds in (exact, usual, ours)]
        print(f"images a second: plain float32 {rates[0]}, with TF32 {rates[1]}, ours {rates[2]}")
    for count in (1, options.batch):
        for fast in (False, True) if cuda else (False,):
            ratio = forward_ratio(options.width, images[:count], fast, device)
            words = "compiled, captured" if fast else "eager"
            print(f"forward, {count} images, {words}: evidential / plain U-Net = {ratio:.3f}")
    if cuda:
        print(f"plain step with TF32 / our step: {usual / ours:.2f}")
    print(f"plain float32 step / our step: {exact / ours:.2f}")


if __name__ == "__main__":
    main()
