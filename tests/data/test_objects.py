import numpy as np
import pytest
from pictures import picture, write
from torchvision import datasets, transforms

from longtail.data.decode import BadImage
from longtail.data.sources import load
from longtail.errors import LongtailError


@pytest.fixture
def image_folder(tmp_path):
    for i, name in enumerate(["a/0.png", "b/1.png", "b/2.png"]):
        write(tmp_path / name, i)
    return datasets.ImageFolder(str(tmp_path))


def test_a_torchvision_data_set(image_folder):
    table = load({"train": image_folder, "test": image_folder})
    assert table.classes == ("a", "b")
    assert table.counts().tolist() == table.counts("test").tolist() == [1, 2]
    back = table.take(np.array([5, 0]))
    assert (back.images.decode(0) == np.array(picture(2))).all()
    assert back.images.name(0) == "ImageFolder[5]"
    assert back.images.content(1) == table.images.content(3) != table.images.content(1)


def test_one_that_keeps_its_labels_nowhere(tmp_path):
    fake = datasets.FakeData(size=6, image_size=(3, 4, 5), num_classes=3)
    table = load(fake)
    assert [table.classes[c] for c in table.labels] == [str(fake[i][1]) for i in range(6)]
    assert table.images.decode(0).shape == (4, 5, 3)


class Broken:
    targets = (0, 1)

    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise OSError("disk on fire")


def test_refusals(image_folder, tmp_path):
    with pytest.raises(LongtailError, match="without a transform"):
        load(datasets.ImageFolder(str(tmp_path), transform=transforms.ToTensor())).images.decode(0)
    with pytest.raises(LongtailError, match='no split "holdout"'):
        load({"holdout": image_folder})
    with pytest.raises(LongtailError, match="no length and items"):
        load(3)
    with pytest.raises(BadImage, match=r"Broken\[1\] cannot be read \(disk on fire\)"):
        load(Broken()).images.decode(1)
    Broken.targets = ((0, 1), (1, 1))
    with pytest.raises(LongtailError, match="several labels"):
        load(Broken())
