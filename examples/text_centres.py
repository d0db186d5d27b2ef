"""Sentences as the samples of a class: GML's bank holds text features, from any encoder of text.

    python examples/text_centres.py

Ten seconds, on scikit-learn's digits with a long tail and three sentences about how each is drawn, told in words that
rare digits share with frequent ones. The text encoder here counts words. With a CLIP none of this is needed:
`longtail train my_images/ --method gml_text --clip ViT-B-16/openai` (docs/vision_language.md).
"""

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

from longtail.data import benchmarks
from longtail.data.loader import pixel_tensor
from longtail.methods import gml

TARGET = 0.75  # balanced accuracy that this example must reach

SAID = {
    0: ("one closed loop", "round on the left and round on the right", "an empty middle"),
    1: ("one straight stroke", "a vertical stroke in the middle", "a small hook at the top"),
    2: ("an arc at the top, open on the left", "a slanted stroke", "a flat stroke at the bottom"),
    3: ("an arc at the top, open on the left", "an arc at the bottom, open on the left", "no loop"),
    4: ("a vertical stroke on the right", "a flat stroke in the middle", "a slanted stroke at the top"),
    5: ("a flat stroke at the top", "an arc at the bottom, open on the left", "a vertical stroke at the top"),
    6: ("a closed loop at the bottom", "a slanted stroke at the top", "round on the left"),
    7: ("a flat stroke at the top", "a slanted stroke", "a flat stroke in the middle"),
    8: ("a closed loop at the top", "a closed loop at the bottom", "a crossing in the middle"),
    9: ("a closed loop at the top", "a vertical stroke at the bottom", "round on the right"),
}
sentences = [sentence for said in SAID.values() for sentence in said]
class_of = torch.tensor([digit for digit, said in SAID.items() for _ in said])
words = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2)).fit_transform(sentences).toarray()
text = torch.from_numpy(words).float()  # [30 sentences, features]: from a language model of yours, if you have one

torch.manual_seed(0)
table = benchmarks.load("digits-lt", imbalance=50)
images, labels = pixel_tensor(table)[:, :1].float() / 255, torch.from_numpy(table.labels).long()
train, test = torch.from_numpy(table.rows("train")), torch.from_numpy(table.rows("test"))

network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    nn.Linear(256, 64), nn.ReLU(),
)  # fmt: skip
objective = gml(table.counts(), dim=64, key_dim=text.shape[1], bank="full")
objective.fill(text, class_of, ids=-1 - torch.arange(len(text)))  # a sentence is no image: its id is none of theirs

optimiser = torch.optim.AdamW([*network.parameters(), *objective.parameters()], lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 40)
for _ in range(40):
    for ids in train[torch.randperm(len(train))].split(32):
        shift = torch.randint(-2, 3, (2,)).tolist()
        loss = objective(network(images[ids].roll(shift, dims=(2, 3))), labels[ids], ids).per_sample.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    schedule.step()

network.eval()
objective.eval()
with torch.no_grad():
    features = network(images[test])
for name, loglik in {"classifier": objective.scores(features), "sentences": objective.kernel_loglik(features)}.items():
    right = loglik.argmax(1) == labels[test]  # both are prior-free, which is right for a balanced test
    accuracy = torch.stack([right[labels[test] == c].float().mean() for c in range(10)])
    print(f"answered by the {name}: {accuracy.mean():.3f}, the three rarest classes {accuracy[-3:].mean():.3f}")
    assert accuracy.mean() > TARGET, f"{accuracy.mean():.3f} is below {TARGET}"
