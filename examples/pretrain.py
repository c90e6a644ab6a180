"""A small language model, trained from a folder of Parquet: the loader's state travels with the checkpoint.

    python examples/pretrain.py demo-data/tokens --steps 200

Run it again and it goes on where the checkpoint was saved; kill it at any moment and no row is lost or comes twice.
On several ranks (`torchrun --nproc-per-node 2 examples/pretrain.py ...`) the same global rows come in the same order,
each rank with its part of every batch; a checkpoint of two ranks resumes on any number that divides the batch.

It needs PyTorch (`pip install torch`, or `.venv` after `make test`). The data of `make demo` fits: a vocabulary of
8,192 whose token 0 ends a document.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import headrace as hr

VOCABULARY = 8192
WIDTH = 64
SEQ_LEN = 256  # tokens a row; one more comes with it, so that each token is a target once
GLOBAL_BATCH = 24  # rows, over all ranks


class Bigram(nn.Module):
    """Predicts the next token from this one: small, so that a CPU will do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def average_gradients(model: nn.Module) -> None:
    """The mean over the ranks, so that the step is that of the whole batch."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main() -> None:
    """Train until the given step, saving every `--save-every` steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder of Parquet files with a column `tokens`")
    parser.add_argument("--steps", type=int, default=200, help="train until this many steps are done in all")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--checkpoint", type=Path, default=Path("pretrain.pt"))
    arguments = parser.parse_args()

    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0

    torch.manual_seed(0)
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # Rank and world size come from torch.distributed.
    packed = hr.open(arguments.data).pack(SEQ_LEN, column="tokens", eos_id=0, overlap=1)
    loader = hr.DataLoader(packed, global_batch_size=GLOBAL_BATCH, seed=0)

    done = 0
    if arguments.checkpoint.exists():
        checkpoint = torch.load(arguments.checkpoint)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        done = checkpoint["steps"]
        print(f"rank {rank}: resumed after step {done}")

    while done < arguments.steps:
        for batch in loader:  # what is left of the epoch
            tokens = torch.from_numpy(batch["tokens"]).long()
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            if dist.is_initialized():
                average_gradients(model)
            optimizer.step()
            done += 1

            if rank == 0 and done % 10 == 0:
                print(f"step {done:5}  epoch {batch.epoch}  loss {loss.item():.3f}", flush=True)
            if rank == 0 and (done % arguments.save_every == 0 or done == arguments.steps):
                # batch.state is the state after this batch: of what was trained, not of what was fetched ahead.
                part = arguments.checkpoint.with_suffix(".part")
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": batch.state,
                        "steps": done,
                    },
                    part,
                )
                part.replace(arguments.checkpoint)
            if done == arguments.steps:
                break

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
