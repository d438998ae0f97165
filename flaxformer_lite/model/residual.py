"""Residual commands: norm, dropout and residual sum around each sublayer."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Array, Float


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Commands around a sublayer `f`, `post(f(pre(x)), x)`: strings of letters, applied left to right.

    `n` normalises, `d` applies dropout, `a` adds the residual, which is the sublayer's input.
    """

    pre: str = "n"
    """Commands before each sublayer; `a` does nothing here."""
    post: str = "da"
    """Commands after each sublayer."""
    final: str = "n"
    """Commands after the last layer of a stack; `a` does nothing here."""

    def __post_init__(self) -> None:
        for name in ("pre", "post", "final"):
            commands = getattr(self, name)
            if set(commands) - set("nda") or commands.count("n") > 1:
                raise ValueError(
                    f"model.residual.{name} is {commands!r}: use the letters n (norm, at most once), d (dropout) and "
                    "a (add the residual), for example 'n', 'da' or 'dan'"
                )


PRE_NORM = Residual(pre="n", post="da", final="n")
"""Norm before every sublayer, and one after the last layer: trains with little warm-up.

Reference: Xiong et al. 2020, arXiv:2002.04745."""


POST_NORM = Residual(pre="", post="dan", final="")
"""Norm after every residual sum, as in the original Transformer. Reference: Vaswani et al. 2017, arXiv:1706.03762, section 5.4."""


def apply_commands(
    commands: str,
    x: Float[Array, "*B D"],
    residual: Float[Array, "*B D"] | None,
    *,
    norm: Callable[[Array], Array],
    dropout: Callable[[Array], Array],
) -> Float[Array, "*B D"]:
    """Applies residual commands (see `Residual`) to `x`, left to right."""
    for command in commands:
        if command == "n":
            x = norm(x)
        elif command == "d":
            x = dropout(x)
        elif command == "a" and residual is not None:
            x = x + residual
    return x
