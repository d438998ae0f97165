"""Chat templates in the manner of eight families, and a byte-level tokenizer that knows their special tokens."""

import random
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer

SPECIAL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|head_end|>", "<|eot|>", "<turn>", "</turn>",
    "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
)  # fmt: skip
MERGES = ["a n", "Ġ t", "Ġ a", "i s", "Ċ Ċ", "l l", "s Ċ", "> Ġ", "Ċ H"]
"""Some merges reach over the places where answers begin and end."""
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}

LOOP = "{% for m in messages %}"
TEMPLATES = {
    "chatml": LOOP
    + "{% if m.role == 'assistant' %}<|im_start|>assistant\n{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{{ '\\n' }}{% else %}<|im_start|>{{ m.role }}{{ '\\n' + m.content }}<|im_end|>{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}",
    "llama_2": "{% set ns = namespace(system='') %}"
    + LOOP
    + "{% if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' + m.content + '\n<</SYS>>\n\n' %}{% elif m.role == 'assistant' %}"
    " {% generation %}{{ m.content }} {{ eos_token }}{% endgeneration %}{% else %}{{ bos_token }}[INST] "
    "{{ ns.system + m.content }} [/INST]{% set ns.system = '' %}{% endif %}{% endfor %}",
    "llama_3": "{{ bos_token }}"
    + LOOP
    + "<|head|>{{ m.role }}<|head_end|>{{ '\\n\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}<|eot|>"
    "{% endgeneration %}{% else %}{{ m.content | trim }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|head_end|>{{ '\\n\\n' }}{% endif %}",
    "gemma": "{{ bos_token }}"
    + LOOP
    + "<turn>{{ 'model' if m.role == 'assistant' else m.role }}{{ '\\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content | trim }}</turn>{% endgeneration %}{% else %}{{ m.content | trim }}</turn>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<turn>model{{ '\\n' }}{% endif %}",
    "mistral": "{{ bos_token }}"
    + LOOP
    + "{% if m.role == 'assistant' %}{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}[INST] "
    "{{ m.content }} [/INST]{% endif %}{% endfor %}",
    "zephyr": LOOP
    + "<|{{ m.role }}|>{{ '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% endif %}",
    "phi": LOOP
    + "<|{{ m.role }}|>{{ '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{{ '\\n' }}"
    "{% endgeneration %}{% else %}{{ m.content }}<|end|>{{ '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% endif %}",
    "plain": LOOP
    + "{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{{ '\\n\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
}
"""Each has its answers in `{% generation %}`."""


def family_tokenizer() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    joined = [merge.replace(" ", "") for merge in MERGES]
    vocabulary = {piece: i for i, piece in enumerate([*SPECIAL, *alphabet, *joined])}
    found = tokenizers.Tokenizer(models.BPE(vocabulary, [tuple(merge.split()) for merge in MERGES]))  # type: ignore[misc]
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return found


def ours() -> JsonTokenizer:
    return JsonTokenizer.of(family_tokenizer().to_str(), NAMES)


def without_generation(template: str) -> str:
    return template.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def drawn_messages(rng: random.Random, special: bool = True) -> list[dict[str, Any]]:
    """A conversation with empty turns, system prompts alone, tools, several answers in a row, names of special tokens."""
    words = ["an", " is", "\n", "Ha", "all ", "é", "🙂", "a\u0301", "", " ", "\n\n", "[INST", "\t"]
    marks = [*SPECIAL, "<<|im_end|>", "<|im_<|im_end|>end|>", "<|im", "_end|>"] if special else []

    def text(role: str) -> str:
        chosen = words + marks * (role in ("user", "tool"))
        return "".join(rng.choices(chosen, k=rng.choice([0, 1, 3, 7])))

    roles = ["system"] * rng.choice([0, 0, 1])
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        roles += ["user", *["assistant"] * rng.choice([0, 1, 1, 1, 2])]
        roles += ["tool", "assistant"] * rng.choice([0, 0, 1])
    messages = [{"role": role, "content": text(role)} for role in roles or ["system"]]
    for message in messages:
        if message["role"] == "assistant" and rng.random() < 0.1:
            message["tool_calls"] = [{"name": "f", "arguments": {"x": 1}}]
    return messages
