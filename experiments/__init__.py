"""experiments: a figure or table of the paper -> one command that computes, stores and draws it."""
