"""Why the paper's evidential head can fail: how many of its four channels live, before training and after it.

    python benchmarks/depth_heads.py --data DATA --out docs/results/depth_heads [--seeds 8] [--steps 3000]

The head squeezes 32 channels through four and a ReLU before the four maps. A channel that is positive at no pixel has
no gradient; with one channel left all four maps are functions of one number. Each seed trains a network with this head
and one with the direct head; all is measured on validation pairs. A run that was stopped goes on with the next seed.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from evidentia.methods import Evidential, fit_images
from evidentia.record import environment, read_record, write_record
from evidentia.reproduce import depth
from evidentia.reproduce.depth_scores import alive_channels
from evidentia.training import resolve_device

METHOD = Evidential(0.01)


def one_seed(data: depth.DepthData, recipe, seed: int, device) -> dict:
    """Shares of pixels at which each channel is positive, and the best validation NLL of both heads."""
    squeezed, images = replace(recipe, head="paper"), data.validation.images
    row = {"seed": seed, "before": alive_channels(squeezed.network(METHOD.outputs, seed).to(device), images)}
    for head, each in (("paper", squeezed), ("direct", recipe)):
        network, training = fit_images(METHOD, data.train, data.validation, each, seed=seed, device=device)
        row |= {"after": alive_channels(network, images)} if head == "paper" else {}
        row[head] = {"nll": float(training.best_score[0]), "best_step": int(training.best_step[0])}
        row[head] |= {"diverged": bool(training.diverged[0]), "seconds": training.seconds}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="without it, synthetic rooms")
    parser.add_argument("--out", type=Path, default=Path("out/depth_heads"))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=depth.RECIPE.width)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    data = depth.load(options.data).to(device)
    settings = replace(depth.RECIPE.settings, steps=options.steps)
    recipe = replace(depth.RECIPE, width=options.width, settings=settings)
    record = {"run": "depth_heads", "environment": environment(device), "data": data.name, "cut": data.cut}
    record |= {"steps": options.steps, "width": options.width, "rows": []}
    if (options.out / "record.json").exists():
        record["rows"] = read_record(options.out)["rows"]
    for seed in range(100 + len(record["rows"]), 100 + options.seeds):
        record["rows"].append(one_seed(data, recipe, seed, device))
        write_record(options.out, record)
        row = record["rows"][-1]
        shares = {when: " ".join(f"{share:.3f}" for share in row[when]) for when in ("before", "after")}
        print(f"seed {seed}: channels positive at {shares['before']} of pixels, trained {shares['after']}; ", end="")
        print(f"NLL paper's head {row['paper']['nll']:.3f}, direct {row['direct']['nll']:.3f}", flush=True)


if __name__ == "__main__":
    main()
