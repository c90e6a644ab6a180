"""Makes the demonstration's data: a BPE tokenizer trained on the text, and Parquet files of its tokens.

    python -m headrace.demo.prepare demo-data [--text FOLDER] [--megabytes 48]

The folder then holds

    tokens/part-00.parquet ...   columns id (string), length (int64: characters), tokens (list<int32>)
    tokenizer.json               as the `tokenizers` package reads it
    manifest.json                what was made, and of which text: the next call has nothing to do

The files are what anyone's tokeniser job would leave: nothing in them is special to headrace.
"""

# pyarrow has no type stubs, and nothing here is public:
# pyright: basic

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.demo.corpus import Text, gather

__all__ = ["Prepared", "main", "prepare"]

VOCABULARY = 8192
END = "<|endoftext|>"  # its id is 0: the trainer numbers special tokens first
SAMPLE = 4 << 20  # characters to train the tokenizer on: more changes the vocabulary little
FILES = 6
ROW_GROUP = 64  # documents: small, so that a small corpus has many row groups
LAYOUT = 1  # raise it when anything here changes what is written

Report = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the folder holds; `manifest.json` has the same fields.

    Attributes:
        digest: of the text and of the settings above.
        documents: number of documents.
        characters: their length, summed.
        tokens: their tokens, summed.
        files: number of Parquet files.
        row_groups: their row groups, summed.
        bytes: size of the Parquet files.
        vocabulary: number of token ids.
        end_id: the id of the token that ends a document.
    """

    digest: str
    documents: int
    characters: int
    tokens: int
    files: int
    row_groups: int
    bytes: int
    vocabulary: int
    end_id: int


def prepare(
    folder: Path, *, text: Path | None = None, limit: int = 48 << 20, report: Report = lambda what, share: None
) -> Prepared:
    """Write tokenizer and Parquet files into `folder`, unless it holds those of the same text.

    Args:
        folder: where to write; made if need be.
        text: a folder of text files; None takes what the machine has.
        limit: bytes of text at most.
        report: is told what is going on, and which share of it is done.

    Raises:
        ValueError: if there is too little text for a demonstration.
    """
    if text is not None and not text.is_dir():
        raise ValueError(f"text: wanted a folder of text files, found no folder at {text}")
    report("gathering text", 0.0)
    documents = list(gather(text, limit=limit))
    characters = sum(len(document.text) for document in documents)
    if len(documents) < 100 or characters < 1_000_000:
        raise ValueError(
            f"{text or 'this machine'}: found {len(documents)} documents of {characters} characters, "
            "wanted at least 100 documents and 1,000,000 characters in all\n"
            "hint: name a folder of more text in DEMO_TEXT"
        )
    digest = _digest(documents)
    manifest = folder / "manifest.json"
    if manifest.exists():
        found = json.loads(manifest.read_text(encoding="utf-8"))
        if found["digest"] == digest:
            return Prepared(**found)

    # Whatever is interrupted below leaves no manifest, so that the next call begins anew.
    manifest.unlink(missing_ok=True)
    tokens = folder / "tokens"
    shutil.rmtree(tokens, ignore_errors=True)
    tokens.mkdir(parents=True)
    prepared = _write(folder, documents, digest, report)
    part = manifest.with_suffix(".part")
    part.write_text(json.dumps(asdict(prepared), indent=2) + "\n", encoding="utf-8")
    part.replace(manifest)
    return prepared


def _digest(documents: Sequence[Text]) -> str:
    digest = hashlib.blake2b(f"{LAYOUT} {VOCABULARY} {SAMPLE} {FILES} {ROW_GROUP}".encode(), digest_size=16)
    for document in documents:
        for field in (document.id, document.text):
            content = field.encode("utf-8", "surrogateescape")
            digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def _write(folder: Path, documents: Sequence[Text], digest: str, report: Report) -> Prepared:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    report("training a tokenizer", 0.0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(documents), trainer)
    tokenizer.encode_special_tokens = True  # text that spells the end token is text
    tokenizer.save(str(folder / "tokenizer.json"))
    end_id = tokenizer.token_to_id(END)
    assert end_id is not None, "the trainer keeps its special tokens"

    schema = pa.schema([("id", pa.string()), ("length", pa.int64()), ("tokens", pa.list_(pa.int32()))])
    total, row_groups = 0, 0
    for number in range(FILES):
        part = documents[number * len(documents) // FILES : (number + 1) * len(documents) // FILES]
        path = folder / "tokens" / f"part-{number:02}.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for first in range(0, len(part), ROW_GROUP):
                report("tokenising", (number + first / len(part)) / FILES)
                group = part[first : first + ROW_GROUP]
                ids = [encoding.ids for encoding in tokenizer.encode_batch_fast([document.text for document in group])]
                columns = {
                    "id": [document.id.encode("utf-8", "replace").decode() for document in group],
                    "length": [len(document.text) for document in group],
                    "tokens": ids,
                }
                writer.write_table(pa.table(columns, schema=schema))
                total += sum(map(len, ids))
                row_groups += 1
    return Prepared(
        digest=digest,
        documents=len(documents),
        characters=sum(len(document.text) for document in documents),
        tokens=total,
        files=FILES,
        row_groups=row_groups,
        bytes=sum(path.stat().st_size for path in (folder / "tokens").iterdir()),
        vocabulary=tokenizer.get_vocab_size(),
        end_id=end_id,
    )


def _sample(documents: Sequence[Text]) -> list[str]:
    """Every k-th document, so that there are about SAMPLE characters."""
    characters = sum(len(document.text) for document in documents)
    step = max(1, round(characters / SAMPLE))
    return [document.text for document in documents[::step]]


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare a folder; the command line of the first lines above."""
    parser = argparse.ArgumentParser(prog="python -m headrace.demo.prepare", description="Make the demo's data.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, default=None, metavar="FOLDER", help="text files to take")
    parser.add_argument("--megabytes", type=int, default=48, help="text at most (%(default)s)")
    arguments = parser.parse_args(argv)

    live = sys.stderr.isatty()

    def report(what: str, share: float) -> None:
        if live:
            done = f" {share:.0%}" if share else ""
            print(f"\r  preparing: {what}{done}\x1b[K", end="", file=sys.stderr, flush=True)

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        prepare(arguments.folder, text=arguments.text, limit=arguments.megabytes << 20, report=report)
    except (ImportError, ValueError) as error:
        hint = "\nhint: pip install 'headrace[demo]'" if isinstance(error, ImportError) else ""
        sys.exit(f"demo: {error}{hint}")
    finally:
        if live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
