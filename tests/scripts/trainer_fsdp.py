"""torchrun --nproc-per-node 2 trainer_fsdp.py VERSION: transformers' Trainer with FSDP: evaluation, saving, resuming."""

import os
import sys
from pathlib import Path

import torch
from small_text import llama
from transformers import Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length):
        self.rows = torch.randint(5, 255, (length, 64))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


trainer = Trainer(
    model=llama(),
    args=TrainingArguments(
        output_dir="sharded",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        max_steps=4,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        logging_steps=1,
        report_to=[],
        fsdp=True,
        fsdp_config={
            "version": int(sys.argv[1]),
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "activation_checkpointing": True,
        },
    ),
    train_dataset=Tokens(64),
    eval_dataset=Tokens(32),
)
trainer.train()
trainer.save_model()
rank = os.environ["RANK"]
print(f"rank {rank}: saved {sorted(path.name for path in Path('sharded').glob('checkpoint-*'))}")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
