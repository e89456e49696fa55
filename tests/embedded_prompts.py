"""Built-in prompts as the embedded target reads them."""

from __future__ import annotations

from svip_adapters.evaluation.hosts import smollm2
from svip_adapters.evaluation.prompts import load


def chat_ids(count: int) -> list[list[int]]:
    """Token ids of the first turns, chat template included."""
    tokenizer = smollm2.load_tokenizer()
    chats = [[{"role": "user", "content": one.turns[0]}] for one in load("builtin", limit=count)]
    options = {"add_generation_prompt": True, "return_dict": False}
    return [tokenizer.apply_chat_template(chat, **options) for chat in chats]
