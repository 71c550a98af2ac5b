"""A small GPT-2 trained by the Trainer of transformers: bf16, gradients of two batches, evaluation, checkpoints."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", default="out")
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __init__(self, length):
        self.rows = torch.randint(0, 512, (length, 64))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


config = GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
training_args = TrainingArguments(
    output_dir=args.output_dir,
    per_device_train_batch_size=args.batch_size,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    max_steps=4,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="steps",
    save_steps=2,
    logging_steps=1,
    bf16=True,
    report_to=[],
    dataloader_num_workers=0,
)
trainer = Trainer(model=model, args=training_args, train_dataset=Tokens(64), eval_dataset=Tokens(16))
trainer.train()
trainer.save_model()
print("max memory allocated", torch.cuda.max_memory_allocated())
