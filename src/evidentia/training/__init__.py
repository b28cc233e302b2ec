"""The training loop, and the batches it reads."""

from evidentia.training.batches import Batches, LoaderBatches, TableBatches
from evidentia.training.images import Augmentation, ImageBatches
from evidentia.training.loop import Part, Settings, Training, resolve_device, seeded, train, train_parts

__all__ = [
    "Augmentation",
    "Batches",
    "ImageBatches",
    "LoaderBatches",
    "Part",
    "Settings",
    "TableBatches",
    "Training",
    "resolve_device",
    "seeded",
    "train",
    "train_parts",
]
