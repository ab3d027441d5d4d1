"""learn: paths with advantages -> a better policy.

`packing` lays paths out as rows and cuts them into passes, `trie` finds what rows share, `attention` lets a model see
a token's ancestors only, `batch` makes tensors, `probe` asks whether a model can do that, `loss` turns per-token
log-probabilities into a loss, `update` takes the optimiser steps, `checkpoint` writes down what a resume needs.
`supervised` makes a first policy by imitation. Locals that are tensors end in the letters of their axes: R rows, T
columns of the model's input, L columns of the responses, S sampled tokens of a batch, V vocabulary.
"""
