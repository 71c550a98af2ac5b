"""LoRA on a small Llama by peft and the Trainer of transformers: the base is frozen, blocks are checkpointed."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config)
model.enable_input_require_grads()
model = get_peft_model(
    model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
)
model.print_trainable_parameters()
rows = torch.randint(0, 512, (32, 48))
dataset = [{"input_ids": row, "labels": row} for row in rows]
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="lora",
        per_device_train_batch_size=4,
        max_steps=3,
        gradient_checkpointing=True,
        bf16=True,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=dataset,
)
trainer.train()
model.save_pretrained("adapter")
print("max memory allocated", torch.cuda.max_memory_allocated())
