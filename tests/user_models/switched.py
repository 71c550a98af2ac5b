"""Library models whose own checkpointing the user has switched on."""

import torch


def bert(is_on: bool = True, batch_size: int = 2):
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=50, **sizes)).train()
    if is_on:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.randint(0, 50, (batch_size, 16))
    return model, {"input_ids": tokens, "labels": tokens}


def gpt2(use_cache: bool = True, batch_size: int = 2):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 16, "vocab_size": 50}
    model = GPT2LMHeadModel(GPT2Config(use_cache=use_cache, **sizes)).train()
    tokens = torch.randint(0, 50, (batch_size, 16))
    return model, {"input_ids": tokens, "labels": tokens}
