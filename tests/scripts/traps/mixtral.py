"""A small Mixtral (experts by a router) by transformers' Trainer, which may look for a batch size; tracked offline."""

import os

import torch
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainingArguments

os.environ.setdefault("WANDB_MODE", "offline")


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length):
        self.rows = torch.randint(0, 256, (length, 64))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


config = MixtralConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    output_router_logits=True,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=0,
)
trainer = Trainer(
    model=MixtralForCausalLM(config),
    args=TrainingArguments(
        output_dir="mixtral",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        auto_find_batch_size=True,
        max_steps=4,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=4,
        logging_steps=1,
        report_to=["wandb"],
    ),
    train_dataset=Tokens(64),
    eval_dataset=Tokens(16),
)
trainer.train()
print("max memory allocated", torch.cuda.max_memory_allocated())
