"""Which dtype a run should use when the user does not say."""

from __future__ import annotations

__all__ = ["choose_dtype"]

FAST_BFLOAT16 = ("amx_bf16", "avx512_bf16")


def choose_dtype(wanted: str, device: str) -> tuple[str, str]:
    """The dtype, and the reason in a few words.

    bfloat16 halves what is read from memory, but a processor without instructions for it converts every
    number on the way, and a forward over several tokens (verification) then costs more than in float32.

    Args:
        wanted: ``auto``, or the name of a dtype.
        device: ``cpu`` or ``cuda``.
    """
    import torch

    if wanted != "auto":
        return wanted, "as asked"
    if device == "cuda":
        fast = torch.cuda.is_bf16_supported()
        return ("bfloat16", "the GPU multiplies it fast") if fast else ("float32", "the GPU has no bfloat16")
    found: dict[str, bool] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # an old torch does not say: float32 is the safe choice
    fast = [name for name in FAST_BFLOAT16 if found.get(name)]
    if fast:
        return "bfloat16", f"this processor multiplies it fast ({fast[0]})"
    return "float32", f"torch finds no fast bfloat16 in this processor ({' or '.join(FAST_BFLOAT16)})"
