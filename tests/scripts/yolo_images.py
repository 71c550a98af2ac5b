"""Images for ultralytics: of shapes with boxes for `detect`, of classes in folders for `classify`; then one epoch of it.

The command line of the package is called as its program `yolo` does.
"""

import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from ultralytics.cfg import entrypoint

random.seed(0)
task, root = sys.argv[1], Path("images").resolve()


def image(size=160):
    return Image.fromarray(np.random.default_rng(random.randrange(1000)).integers(0, 255, (size, size, 3), np.uint8))


for part, count in (("train", 16), ("val", 8)):
    for number in range(count):
        if task == "classify":
            folder = root / part / f"class{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            image().save(folder / f"{number}.jpg")
            continue
        for kind in ("images", "labels"):
            (root / kind / part).mkdir(parents=True, exist_ok=True)
        image().save(root / "images" / part / f"{number}.jpg")
        boxes = [(random.randrange(3), *(round(random.uniform(0.2, 0.5), 3) for _ in range(4))) for _ in range(4)]
        lines = "\n".join(" ".join(map(str, box)) for box in boxes)
        (root / "labels" / part / f"{number}.txt").write_text(lines + "\n")
data = root
if task == "detect":
    data = root / "data.yaml"
    data.write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: [a, b, c]\n")
model = {"detect": "yolo11n.yaml", "classify": "yolo11n-cls.yaml"}[task]
sys.argv[1:] = [task, "train", f"model={model}", f"data={data}", *sys.argv[2:]]
entrypoint()
