"""Compares a training step of the evidential U-Net with a plain PyTorch step, and its prediction with a plain U-Net's.

    python benchmarks/bench_depth.py [--device cuda] [--batch 32] [--steps 400] [--width 32] [--out FOLDER]

Training: the images are 160×128, on the device, and random, since the arithmetic does not depend on them. The plain
step is eager, with Adam, without augmentation, and upsamples and concatenates feature maps before each convolution of
the decoder; it is timed in float32 throughout, and with torch's defaults, under which cuDNN rounds the inputs of
convolutions to TF32. Our step is that of `fit_images`: augmentation, bfloat16, channels last and gradient clipping in
one compiled and captured step. An image takes 7.0 GFLOP forward (8.7 in the plain network), 21 with the backward pass,
and moves about 0.1 GB of feature maps; on an H200 either alone would allow more than 15,000 images a second.

Prediction: the mean and, of the evidential network, both variances; eager, and compiled and captured, as a depth camera
would run it. The two networks take turns.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import interpolate

import howsure as hs
from howsure.images import FittedImages, ImageBatches, ImageRecipe, Pairs
from howsure.images.training import fastest_convolutions, loss_of
from howsure.likelihoods import Evidential
from howsure.nn import UNet, unet
from howsure.training import Settings, resolve_device, train
from howsure_paper.baselines import LeastSquares
from howsure_paper.record import environment, write_record
from howsure_paper.timing import captured, synchronized_time

SIZE = 128, 160


def upsample_and_convolve(x: torch.Tensor, skip: torch.Tensor, conv: torch.nn.Conv2d) -> torch.Tensor:
    """Return what a step of the decoder computes, as it is usually written."""
    return conv(torch.cat([interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))


def plain_step(pairs: Pairs, width: int, batch: int, steps: int, device: torch.device, tf32: bool) -> float:
    """Return the seconds of a plain PyTorch step."""
    torch.backends.cudnn.allow_tf32 = tf32
    ours, unet._convolve_doubled = unet._convolve_doubled, upsample_and_convolve
    network = UNet(width=width, seed=0).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    batches = ImageBatches(pairs.images, pairs.maps, batch)
    times = []
    for _ in range(steps + 5):
        started = synchronized_time(device)
        x, y = batches.next()
        optimizer.zero_grad()
        nig = hs.NormalInverseGamma.from_raw(network(x.contiguous()), dim=1)
        nig.raw = None  # the formulas, which autograd differentiates
        hs.evidential_loss(nig, y, 0.01).backward()
        optimizer.step()
        times.append(synchronized_time(device) - started)
    torch.backends.cudnn.allow_tf32, unet._convolve_doubled = True, ours
    return statistics.median(times[5:])


def our_step(pairs: Pairs, width: int, batch: int, steps: int, device: torch.device) -> float:
    """Return the seconds of a step of the training loop, measured between its evaluations."""
    recipe = ImageRecipe(width=width)
    method = Evidential(0.01)
    network = recipe.network(4, 0).to(device, memory_format=torch.channels_last)
    batches = ImageBatches(pairs.images, pairs.maps, batch, 0, recipe.augmentation)
    ends: list[float] = []

    def watch(_) -> torch.Tensor:
        ends.append(synchronized_time(device))
        return torch.zeros(1, device=device)

    every = max(1, steps // 4)
    precision = "bfloat16" if device.type == "cuda" else "float32"
    settings = Settings(steps=5 * every, evaluate_every=every, precision=precision)
    with fastest_convolutions():
        train(network, batches, loss_of(method, device), validate=watch, settings=settings)
    return statistics.median(b - a for a, b in itertools.pairwise(ends)) / every


def predictor(method, width: int, images: torch.Tensor, fast: bool, device: torch.device) -> Callable[[], object]:
    """Return a function that predicts the maps of these images, with both variances where the method has them."""
    recipe = ImageRecipe(width=width)
    model = FittedImages(method, (recipe.network(method.outputs, 0).eval(),), recipe).to(device)

    def predict():
        answer = model.answers(images)
        if isinstance(answer, hs.NormalInverseGamma):
            return answer.prediction, answer.aleatoric_variance, answer.epistemic_variance
        return answer.loc

    if not fast:
        return predict
    torch._dynamo.reset()  # otherwise the second network would run the first one's code, compiled for any shape
    return captured(torch.compile(predict, dynamic=False), device)


def forward_ratio(width: int, images: torch.Tensor, fast: bool, device: torch.device) -> float:
    """Return the time of an evidential prediction over that of a plain one."""
    with torch.no_grad(), fastest_convolutions():
        predictors = [predictor(method, width, images, fast, device) for method in (Evidential(), LeastSquares())]
        times = []
        for _ in range(60 if device.type == "cuda" else 10):
            times.append([])
            for predict in predictors:
                started = synchronized_time(device)
                predict()
                times[-1].append(synchronized_time(device) - started)
    return statistics.median(a / b for a, b in times[len(times) // 5 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--out", type=Path, help="a folder for the record")
    options = parser.parse_args()
    device = resolve_device(options.device)
    cuda, (height, width) = device.type == "cuda", SIZE
    images = torch.randint(0, 256, (512, height, width, 3), dtype=torch.uint8, device=device)
    pairs = Pairs(images, torch.rand(512, height, width, device=device))
    about = environment(device)
    print(f"device: {about['device']['name']}")
    setting = (pairs, options.width, options.batch, options.steps, device)
    seconds = {"plain float32": plain_step(*setting, tf32=False)}
    if cuda:
        seconds["plain with TF32"] = plain_step(*setting, tf32=True)
    seconds["ours"] = our_step(*setting)
    rates = {name: options.batch / each for name, each in seconds.items()}
    if cuda:  # elsewhere only ratios mean anything
        print("images a second: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
    forward = {}
    for count in (1, options.batch):
        for fast in (False, True) if cuda else (False,):
            words = f"{count} image{'s' if count > 1 else ''}, {'compiled and captured' if fast else 'eager'}"
            forward[words] = forward_ratio(options.width, images[:count], fast, device)
            print(f"forward, {words}: evidential / plain U-Net = {forward[words]:.3f}")
    if options.out:
        record = {"run": "bench_depth", "environment": about, "size": SIZE, "width": options.width}
        record |= {"batch": options.batch, "images a second": rates, "forward": forward}
        write_record(options.out, record)
    for name in reversed([name for name in seconds if name != "ours"]):
        print(f"{name} step / our step: {seconds[name] / seconds['ours']:.2f}")


if __name__ == "__main__":
    main()
