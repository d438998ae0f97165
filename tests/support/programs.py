"""Programs as JAX traces them."""

import math

import jax


def products(jaxpr):
    """Yields the operands and the batch dimensions of all products in a program, those of its parts included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield [variable.aval for variable in equation.invars], equation.params["dimension_numbers"][1][0]
        for value in jax.tree.leaves(list(equation.params.values())):
            part = getattr(value, "jaxpr", value)
            if hasattr(part, "eqns"):
                yield from products(part)


def multiplications(jaxpr) -> int:
    """Returns the number of multiplications of all products in a program; those in a loop count as often as it runs."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            summed, _ = equation.params["dimension_numbers"][0]
            total += equation.outvars[0].aval.size * math.prod(equation.invars[0].aval.shape[axis] for axis in summed)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for value in jax.tree.leaves(list(equation.params.values())):
            part = getattr(value, "jaxpr", value)
            total += times * multiplications(part) if hasattr(part, "eqns") else 0
    return total
