"""Tokens in, logits out: the Transformer and its parts, as pure Flax Linen modules.

The alphabet of every shape in this package:

    B batch        T query or target length    S key or source length    D model width
    N query heads  K key/value heads           G query heads per key/value head (N / K)
    H head width   F feed-forward width        V vocabulary              L layers

The mathematics are plain functions; the Linen modules only hold parameters. Dropout is on exactly when a module is applied
with a "dropout" random key: `model.apply(params, inputs, rngs={"dropout": key})` trains, without the key it evaluates.
"""
