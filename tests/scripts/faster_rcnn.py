"""torchvision's Faster R-CNN on random images with boxes: training, then detections."""

import torch
import torchvision

device = torch.device("cuda")
model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
    weights=None, weights_backbone=None, num_classes=5
).to(device)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)
model.train()
for step in range(3):
    images = [torch.rand(3, 160 + 32 * (number % 2), 192) for number in range(2)]
    targets = []
    for _ in images:
        corner = torch.rand(4, 2) * 60
        boxes = torch.cat((corner, corner + 20 + torch.rand(4, 2) * 60), dim=1)
        targets.append({"boxes": boxes, "labels": torch.randint(1, 5, (4,))})
    images = [image.to(device) for image in images]
    targets = [{name: value.to(device) for name, value in target.items()} for target in targets]
    losses = model(images, targets)
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, {name: round(value.item(), 3) for name, value in losses.items()})
model.eval()
with torch.no_grad():
    found = model([torch.rand(3, 160, 192).to(device)])[0]
print(len(found["boxes"]), "boxes")
print("max memory allocated", torch.cuda.max_memory_allocated())
