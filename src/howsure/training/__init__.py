"""The training loop, and the batches it reads."""

from howsure.training.batches import Batches, LoaderBatches, TableBatches
from howsure.training.loop import Part, train, train_parts
from howsure.training.settings import Settings, Training, resolve_device, seeded

__all__ = [
    "Batches",
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
