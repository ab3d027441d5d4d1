"""A training run that says whether its weights, reference and optimiser are really sharded; started by torchrun."""

import sys

from torch.distributed.tensor import DTensor

from igrpo_train.recipes import load_recipe
from igrpo_train.trainer import Trainer


def main() -> None:
    """Run the recipe of the command line."""
    trainer = Trainer(load_recipe(sys.argv[1:]))
    models = [trainer.updater.model, trainer.updater.reference]
    parameters = [parameter for model in models if model is not None for parameter in model.parameters()]
    trainer.run()
    states = [value for state in trainer.updater.optimiser.state.values() for value in state.values() if value.dim()]
    sharded = all(isinstance(tensor, DTensor) for tensor in (*parameters, *states))
    if trainer.processes.main:
        sys.stdout.write(f"sharded: {sharded and trainer.processes.count == 2}\n")


if __name__ == "__main__":
    main()
