"""torchrun --nproc-per-node 2 trainer_fsdp1.py: transformers' Trainer with FSDP1, evaluating and saving as it goes."""

import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=256, n_positions=64)
model = GPT2LMHeadModel(config)
data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(0, 256, (32, 64))]
arguments = TrainingArguments(
    output_dir="fsdp1",
    per_device_train_batch_size=4,
    max_steps=4,
    save_steps=2,
    eval_strategy="steps",
    eval_steps=2,
    logging_steps=1,
    bf16=True,
    fsdp="full_shard auto_wrap",
    fsdp_config={"version": 1, "transformer_layer_cls_to_wrap": ["GPT2Block"]},
    report_to=[],
)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
trainer.train()
rank = os.environ["RANK"]
print(f"rank {rank}: saved", sorted(path.name for path in Path("fsdp1").glob("checkpoint-*")))
print(f"rank {rank}: max memory allocated", torch.cuda.max_memory_allocated())
