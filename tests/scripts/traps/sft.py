"""trl's SFTTrainer on conversations: checkpointing, bf16, evaluation."""

import torch
from datasets import Dataset
from small_text import llama, sentence, tokenizer
from trl import SFTConfig, SFTTrainer


def rows(count):
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": sentence(6 + number % 9)}],
                "completion": [{"role": "assistant", "content": sentence(4 + number % 13)}],
            }
            for number in range(count)
        ]
    )


trainer = SFTTrainer(
    model=llama(),
    args=SFTConfig(
        output_dir="sft",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        max_steps=4,
        max_length=64,
        bf16=True,
        gradient_checkpointing=True,
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
