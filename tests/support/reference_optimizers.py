"""Slow optimizers in float64 numpy, one parameter of one layer at a time: the oracle of the optimizer's tests.

Each function answers with a direction, a function of gradient, parameter and step (from 1) that has its own memory.
"""

import numpy as np

from flaxformer_lite.core.optim.optimizers import SGD, Adafactor, AdamW, Algorithm, Lion, Muon


def adam(b1: float, b2: float, eps: float):
    m, v = 0.0, 0.0

    def direction(g, w, n):
        nonlocal m, v
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        return m / (1 - b1**n) / (np.sqrt(v / (1 - b2**n)) + eps)

    return direction


def adafactor(exponent: float, limit: float | None, scale_by_parameter: bool):
    r, c, v = 0.0, 0.0, 0.0

    def rms(x):
        return np.sqrt(np.mean(x**2))

    def direction(g, w, n):
        nonlocal r, c, v
        beta = 1 - n**-exponent
        if g.ndim == 2:
            r = beta * r + (1 - beta) * np.mean(g**2, axis=1)
            c = beta * c + (1 - beta) * np.mean(g**2, axis=0)
            second_moment = np.outer(r, c) / np.mean(r)
        else:
            second_moment = v = beta * v + (1 - beta) * g**2
        u = g / np.sqrt(second_moment)
        u = u / max(1.0, rms(u) / limit) if limit else u
        return u * max(1e-3, rms(w)) if scale_by_parameter else u

    return direction


def lion(b1: float, b2: float):
    m = 0.0

    def direction(g, w, n):
        nonlocal m
        sign, m = np.sign(b1 * m + (1 - b1) * g), b2 * m + (1 - b2) * g
        return sign

    return direction


def muon(momentum: float, nesterov: bool, steps: int, update_rms: float):
    m = 0.0

    def direction(g, w, n):
        nonlocal m
        m = momentum * m + (1 - momentum) * g
        x = m / (1 - momentum**n)
        if nesterov:
            debiased = g / (1 - momentum**n)
            x = momentum * m / (1 - momentum ** (n + 1)) + (1 - momentum) * debiased
        # The polynomial acts on the singular values alone, so it can be applied to them (Jordan 2024).
        left, values, right = np.linalg.svd(x, full_matrices=False)
        values = values / np.sqrt(np.sum(values**2))
        for _ in range(steps):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        return update_rms * np.sqrt(max(g.shape)) * (left * values) @ right

    return direction


def sgd(momentum: float, nesterov: bool):
    m = 0.0

    def direction(g, w, n):
        nonlocal m
        m = momentum * m + g
        return g + momentum * m if nesterov else m

    return direction


def direction_of(a: Algorithm, path: str):
    """The direction that this algorithm takes for the parameter at this path."""
    match a:
        case AdamW():
            return adam(a.b1, a.b2, a.eps)
        case Adafactor():
            return adafactor(a.decay_exponent, a.max_update_rms, a.scale_by_parameter)
        case Lion():
            return lion(a.b1, a.b2)
        case Muon() if path.endswith("kernel") and path != "head/kernel":
            return muon(a.momentum, a.nesterov, a.newton_schulz_steps, a.update_rms)
        case Muon():
            return adam(a.b1, a.b2, a.eps)
        case SGD():
            return sgd(a.momentum, a.nesterov)
