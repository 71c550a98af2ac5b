"""Images of noise with boxes for ultralytics, and one epoch of its detector, by the package's own program."""

import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from ultralytics.cfg import entrypoint

root = Path("shapes").resolve()
for part, count in (("train", 16), ("val", 8)):
    for kind in ("images", "labels"):
        (root / kind / part).mkdir(parents=True)
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 255, (160, 160, 3), np.uint8)
        Image.fromarray(noise).save(root / "images" / part / f"{number}.jpg")
        boxes = [(number % 3, *(round(random.uniform(0.2, 0.5), 3) for _ in range(4))) for _ in range(4)]
        lines = "".join(" ".join(map(str, box)) + "\n" for box in boxes)
        (root / "labels" / part / f"{number}.txt").write_text(lines)
(root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: [a, b, c]\n")
sys.argv[1:] = ["detect", "train", "model=yolo11n.yaml", f"data={root / 'data.yaml'}", *sys.argv[1:]]
entrypoint()
