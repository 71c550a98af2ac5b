"""A small DETR of transformers with its matching of boxes, in a loop of one's own."""

import torch
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

device = torch.device("cuda")
backbone = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], out_features=["stage4"])
config = DetrConfig(
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone=None,
    backbone_config=backbone,
    num_labels=5,
    num_queries=10,
    d_model=64,
    encoder_layers=2,
    decoder_layers=2,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    auxiliary_loss=True,
)
model = DetrForObjectDetection(config).to(device)
parts = [
    {"params": [p for n, p in model.named_parameters() if "backbone" not in n]},
    {"params": [p for n, p in model.named_parameters() if "backbone" in n], "lr": 1e-5},
]
optimizer = torch.optim.AdamW(parts, lr=1e-4)
for step in range(4):
    pixel_values, pixel_mask = torch.randn(2, 3, 128, 128), torch.ones(2, 128, 128, dtype=torch.long)
    labels = [
        {"class_labels": torch.randint(0, 5, (3,)).to(device), "boxes": (torch.rand(3, 4) * 0.4 + 0.2).to(device)}
        for _ in range(2)
    ]
    outputs = model(pixel_values=pixel_values.to(device), pixel_mask=pixel_mask.to(device), labels=labels)
    optimizer.zero_grad()
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print(step, {name: round(value.item(), 3) for name, value in outputs.loss_dict.items()})
print("max memory allocated", torch.cuda.max_memory_allocated())
