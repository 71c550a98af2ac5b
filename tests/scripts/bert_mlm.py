"""A small BERT learns masked words by the Trainer of transformers: metrics, the best model, and a second half resumed."""

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

VOCABULARY, LENGTH, MASK = 256, 32, 3


class Text(torch.utils.data.Dataset):
    def __init__(self, length):
        self.rows = torch.randint(4, VOCABULARY, (length, LENGTH))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index]}


def mask(rows):
    input_ids = torch.stack([row["input_ids"] for row in rows])
    is_masked = torch.rand(input_ids.shape) < 0.15
    labels = input_ids.masked_fill(~is_masked, -100)
    return {"input_ids": input_ids.masked_fill(is_masked, MASK), "labels": labels}


def compute_metrics(prediction):
    is_masked = prediction.label_ids != -100
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids)[is_masked].mean())}


def trainer(max_steps):
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
    )
    return Trainer(
        model=BertForMaskedLM(config),
        args=TrainingArguments(
            output_dir="bert",
            per_device_train_batch_size=8,
            per_device_eval_batch_size=16,
            max_steps=max_steps,
            fp16=True,
            warmup_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            save_total_limit=1,
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            report_to=[],
        ),
        data_collator=mask,
        train_dataset=Text(64),
        eval_dataset=Text(24),
        compute_metrics=compute_metrics,
    )


trainer(2).train()
second = trainer(4)
second.train(resume_from_checkpoint=True)
print(second.evaluate())
second.save_model("bert-final")
print("max memory allocated", torch.cuda.max_memory_allocated())
