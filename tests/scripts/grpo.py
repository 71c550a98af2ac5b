"""trl's GRPOTrainer: answers are generated, and scored by a function of their words."""

import torch
from datasets import Dataset
from small_text import llama, sentence, tokenizer
from trl import GRPOConfig, GRPOTrainer


def different_words(completions, **more):
    return [float(len(set(completion.split()))) for completion in completions]


llama().save_pretrained("start")  # the reference model is loaded as well
trainer = GRPOTrainer(
    model="start",
    reward_funcs=different_words,
    args=GRPOConfig(
        output_dir="grpo",
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=24,
        max_steps=3,
        bf16=True,
        beta=0.04,
        logging_steps=1,
        save_steps=3,
        report_to=[],
    ),
    train_dataset=Dataset.from_list([{"prompt": sentence(6 + number % 9)} for number in range(32)]),
    processing_class=tokenizer(),
)
trainer.train()
print("max memory allocated", torch.cuda.max_memory_allocated())
