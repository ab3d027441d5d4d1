"""learn: paths with advantages -> a better policy.

`packing` lays paths out as model rows, `loss` turns per-token log-probabilities into a loss, `update` takes the
optimiser steps, `checkpoint` writes down what a resume needs. `supervised` makes a first policy by imitation.
Locals that are tensors end in the letters of their axes: R rows, T columns of the model's input, L columns of the
responses, S sampled tokens of a batch, V vocabulary.
"""
