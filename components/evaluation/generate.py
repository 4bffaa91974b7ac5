"""Continuing a prompt with a trained model, in one process. Called by the evaluation step for its samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def generate(
    model: torch.nn.Module,
    prompt: list[int],
    *,
    new_tokens: int,
    temperature: float,
    seed: int,
    end_of_text: int,
    context: int,
) -> list[int]:
    """The tokens that `model` puts after `prompt`: at most `new_tokens`, fewer where it ends the text itself.

    The prompt is read as the beginning of a document: an end-of-text token goes before it, as in training. Where prompt
    and continuation outgrow the context, the model sees the last `context` tokens of them.

    Args:
        model: `model(tokens int64[1, T], positions int64[1, T], None) -> logits [1, T, V]`.
        temperature: divides the logits; 0 always takes the likeliest token.
        seed: of the sampling; the same seed and model give the same text on the same kind of device.
        context: tokens that the model was trained to see at once.

    Returns:
        The new tokens, without the prompt and without the closing end-of-text token.
    """
    device = next(model.parameters()).device
    # Drawn on the CPU whatever the device, so that the generator's stream does not depend on it.
    generator = torch.Generator().manual_seed(seed)
    history = [end_of_text, *prompt]
    begin = len(history)
    for _ in range(new_tokens):
        window = torch.tensor([history[-context:]], dtype=torch.int64, device=device)
        positions = torch.arange(window.shape[1], device=device)[None]
        logits: Any = model(window, positions, None)
        token = _choose(logits[0, -1].double().cpu(), temperature=temperature, generator=generator)
        if token == end_of_text:
            break
        history.append(token)
    return history[begin:]


def _choose(logits: Tensor, *, temperature: float, generator: torch.Generator) -> int:
    # A model that diverged has logits that are no numbers; its samples shall show that and not end the evaluation.
    logits = torch.nan_to_num(logits)
    if temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))
