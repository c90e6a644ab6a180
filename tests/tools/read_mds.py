"""Reads MDS datasets with MosaicML Streaming: `.venv-peers/bin/python read_mds.py OUT FOLDER...`.

``OUT`` is then a pickle of each folder's samples, by its name, as `plain` shows them.
"""

import os
import pickle
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from plain_values import plain

warnings.filterwarnings("ignore")


def read(folder: Path) -> list:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    with tempfile.TemporaryDirectory() as local:
        shutil.copytree(folder, Path(local, "remote"))
        data = StreamingDataset(
            remote=str(Path(local, "remote")),
            local=str(Path(local, "local")),
            shuffle=False,
            batch_size=1,
            validate_hash="sha1",
            allow_unsafe_types=False,
        )
        return [plain(data[number]) for number in range(len(data))]


if __name__ == "__main__":
    values = {Path(name).name: read(Path(name)) for name in sys.argv[2:]}
    Path(sys.argv[1]).write_bytes(pickle.dumps(values))
    sys.stdout.flush()
    os._exit(0)  # Streaming's threads and clients are of no interest here.
