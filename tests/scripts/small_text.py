"""A tokenizer of a few hundred words and a small Llama, for trainers of language models; nothing is downloaded."""

import random

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [f"w{number}" for number in range(250)]
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def sentence(length):
    return " ".join(random.choices(WORDS, k=length))


def tokenizer():
    special = ["<pad>", "<unk>", "</s>", "<user>", "<assistant>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", bos_token="</s>"
    )
    made.chat_template = TEMPLATE
    return made


def llama(**more):
    config = LlamaConfig(
        vocab_size=len(WORDS) + 5,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=2,
        **more,
    )
    return LlamaForCausalLM(config)
