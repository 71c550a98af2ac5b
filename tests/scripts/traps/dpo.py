"""trl's DPOTrainer on pairs of answers: a reference model, bf16, evaluation."""

import torch
from datasets import Dataset
from small_text import llama, sentence, tokenizer
from trl import DPOConfig, DPOTrainer


def rows(count):
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": sentence(6 + number % 9)}],
                "chosen": [{"role": "assistant", "content": sentence(4 + number % 13)}],
                "rejected": [{"role": "assistant", "content": sentence(4 + number % 7)}],
            }
            for number in range(count)
        ]
    )


trainer = DPOTrainer(
    model=llama(),
    ref_model=llama(),
    args=DPOConfig(
        output_dir="dpo",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        max_steps=4,
        max_length=64,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_steps=4,
        report_to=[],
    ),
    train_dataset=rows(32),
    eval_dataset=rows(8),
    processing_class=tokenizer(),
)
trainer.train()
print("max memory allocated", torch.cuda.max_memory_allocated())
