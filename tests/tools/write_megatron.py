"""Writes Megatron-LM datasets with megatron-core: `.venv-peers/bin/python write_megatron.py FOLDER`.

Below the folder each type has a folder of its own; ``documents.npz`` has the documents of each, one behind another, and
where they end.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

warnings.filterwarnings("ignore")

from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    wanted: dict[str, np.ndarray] = {}
    for name in DTYPES:
        (folder / name).mkdir(parents=True)
        builder = IndexedDatasetBuilder(str(folder / name / "text.bin"), dtype=np.dtype(name).type)
        documents: list[np.ndarray] = []
        for _ in range(40):
            sequences = [rng.integers(0, 100, rng.integers(0, 30)).astype(name) for _ in range(rng.integers(0, 4))]
            for sequence in sequences:
                builder.add_item(torch.from_numpy(sequence.astype(np.int64 if name != "float64" else name)))
            builder.end_document()
            documents.append(np.concatenate([np.zeros(0, name), *sequences]).astype(name))
        builder.finalize(str(folder / name / "text.idx"))
        wanted[name] = np.concatenate(documents)
        wanted[f"{name}-ends"] = np.cumsum([len(document) for document in documents])
    np.savez(folder / "documents.npz", **wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
