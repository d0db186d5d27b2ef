"""Captions for CIFAR images, made of what a training knows of them: class, kind of thing, and colours in the pixels.

They teach a small CLIP where no weights can be downloaded. A caption gives away no more than the label of its image, so
a training set's captions are as fair as its labels; those of a test set must never be made.
"""

import numpy as np
import torch
from torch import Tensor

from longtail.vision_language.corpus import readable

KINDS = {
    "an aquatic mammal": ("beaver", "dolphin", "otter", "seal", "whale"),
    "a fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "a flower": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "a container for food": ("bottle", "bowl", "can", "cup", "plate"),
    "a fruit or vegetable": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "an electrical device": ("clock", "keyboard", "lamp", "telephone", "television"),
    "a piece of furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "an insect": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "a large carnivore": ("bear", "leopard", "lion", "tiger", "wolf"),
    "a large thing built outdoors": ("bridge", "castle", "house", "road", "skyscraper"),
    "a natural scene": ("cloud", "forest", "mountain", "plain", "sea"),
    "a large animal that eats plants": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo", "deer", "horse"),
    "a mammal of medium size": ("fox", "porcupine", "possum", "raccoon", "skunk", "cat", "dog"),
    "an invertebrate": ("crab", "lobster", "snail", "spider", "worm"),
    "a person": ("baby", "boy", "girl", "man", "woman"),
    "a reptile": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "a small mammal": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "a tree": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "a vehicle for passengers": ("bicycle", "bus", "motorcycle", "pickup_truck", "train", "automobile"),
    "a heavy vehicle": ("lawn_mower", "rocket", "streetcar", "tank", "tractor", "truck", "ship", "airplane"),
    "an animal": ("bird", "frog"),
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}

COLOURS = {
    "black": (20, 20, 20), "grey": (128, 128, 128), "white": (235, 235, 235), "red": (190, 40, 40),
    "orange": (230, 130, 40), "yellow": (225, 210, 60), "green": (70, 140, 60), "blue": (70, 120, 200),
    "purple": (120, 60, 140), "pink": (230, 150, 180), "brown": (120, 80, 50), "beige": (215, 190, 150),
}  # fmt: skip

TEMPLATES = (
    "a photo of a {name}.",
    "a {colour} {name}.",
    "a {name} on a {background} background.",
    "a photo of a {name}, {kind}.",
    "{kind}: a {colour} {name}.",
    "{kind} on a {background} background.",
    "a photo of {kind}.",
)


def sentences(name: str) -> list[str]:
    """All that a caption may say of this class by name, in every colour; without the first, a template everywhere."""
    named = [template for template in TEMPLATES[1:] if "{name}" in template]
    made = [
        template.format(name=readable(name), kind=KIND_OF[name], colour=colour, background=colour)
        for template in named
        for colour in COLOURS
    ]
    return list(dict.fromkeys(made))


def words(classes: tuple[str, ...]) -> list[str]:
    """Texts that together hold every word of every caption."""
    return [*(sentence for name in classes for sentence in sentences(name)), *KINDS, *TEMPLATES]


def colours(images: np.ndarray) -> np.ndarray:
    """uint8 [N, H, W, 3] -> [N, 2] indices into COLOURS: most frequent in the middle, and at the border."""
    palette = np.array(list(COLOURS.values()), np.float32)
    height, width = images.shape[1:3]
    middle = np.zeros((height, width), bool)
    middle[height // 4 : -(height // 4), width // 4 : -(width // 4)] = True
    found = np.empty((len(images), 2), np.int64)
    for start in range(0, len(images), 1000):
        pixels = images[start : start + 1000].astype(np.float32)
        nearest = (palette**2).sum(1) - 2 * pixels @ palette.T  # squared distance, without what all colours share
        name = nearest.argmin(-1)
        for column, part in enumerate((middle, ~middle)):
            counts = np.stack([(name[:, part] == colour).sum(1) for colour in range(len(palette))], 1)
            found[start : start + 1000, column] = counts.argmax(1)
    return found


def captions(classes: tuple[str, ...], labels: np.ndarray, found: np.ndarray, u: Tensor) -> list[str]:
    """One caption an image; u [N] in [0, 1) picks its template."""
    names = list(COLOURS)
    template = (u * len(TEMPLATES)).to(torch.int64).tolist()
    return [
        TEMPLATES[t].format(
            name=readable(classes[label]), kind=KIND_OF[classes[label]], colour=names[middle], background=names[border]
        )
        for t, label, (middle, border) in zip(template, labels.tolist(), found.tolist(), strict=True)
    ]
