"""Programs as JAX traces them."""

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
