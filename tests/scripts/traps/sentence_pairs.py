"""sentence-transformers' trainer on pairs of sentences, fp16, with an evaluator of similarity."""

import random

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from small_text import sentence, tokenizer
from transformers import BertConfig, BertModel

config = BertConfig(
    vocab_size=260, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
    max_position_embeddings=64, pad_token_id=0,
)  # fmt: skip
BertModel(config).save_pretrained("bert")
tokenizer().save_pretrained("bert")
words = Transformer("bert", max_seq_length=32)
model = SentenceTransformer(modules=[words, Pooling(64)], device="cuda")
pairs = [{"anchor": sentence(5 + number % 9), "positive": sentence(5 + number % 7)} for number in range(64)]
evaluator = EmbeddingSimilarityEvaluator(
    [sentence(6) for _ in range(8)], [sentence(6) for _ in range(8)], [random.random() for _ in range(8)]
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="sentences", per_device_train_batch_size=8, max_steps=4, fp16=True, eval_strategy="steps",
        eval_steps=2, save_steps=4, logging_steps=1, report_to=[],
    ),
    train_dataset=Dataset.from_list(pairs),
    eval_dataset=Dataset.from_list(pairs[:16]),
    loss=MultipleNegativesRankingLoss(model),
    evaluator=evaluator,
)  # fmt: skip
trainer.train()
print("max memory allocated", torch.cuda.max_memory_allocated())
