"""Encrypted LitData: keys of headrace and of litdata open the same files, and are never where they could be read."""

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.fernet import InvalidToken
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
import prepare_functions as functions
from headrace.encryption import FernetEncryption, RSAEncryption, load_key
from headrace.errors import DataError, StateMismatch
from litdata_files import same, theirs
from litdata_files import write as write_theirs

from litdata.utilities import encryption as litdata  # isort: skip

PASSWORD = "correct horse battery staple"
KEYS: dict[str, Any] = {"fernet": FernetEncryption, "rsa": RSAEncryption}
THEIRS: dict[str, Any] = {"fernet": litdata.FernetEncryption, "rsa": litdata.RSAEncryption}
QUIET: dict[str, Any] = {"progress": False, "verbose": False}

# No more than 190 bytes, which is what litdata's RSA encrypts.
SHORT = [{"text": f"plaintext {number}", "number": number, "array": np.arange(number)} for number in range(9)]


def write(folder: Path, samples: list[Any], **how: Any) -> headrace.Prepared:
    how = {"num_workers": 0, "keep_data_ordered": True, **QUIET} | how
    return headrace.optimize(samples.__getitem__, range(len(samples)), folder, **how)


def ours(folder: Path, **how: Any) -> list[Any]:
    data = headrace.open(folder, **how)
    return [data[number] for number in range(len(data))]


def everything(folder: Path) -> bytes:
    """Names and contents of all files below a folder, hidden ones too."""
    return b"".join(str(path).encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


# Datasets


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("algorithm", KEYS)
@pytest.mark.parametrize("level", ["sample", "chunk"])
def test_litdata_reads_what_is_encrypted_here(tmp_path: Path, level: Any, algorithm: str, compression: Any) -> None:
    key = KEYS[algorithm](PASSWORD, level)
    made = write(tmp_path / "data", SHORT, encryption=key, chunk_size=4, compression=compression)
    assert (made.samples, made.chunks) == (9, 3)
    index = json.loads((tmp_path / "data" / "index.json").read_text())
    assert index["config"]["encryption"] == {"algorithm": algorithm, "level": level}
    same(ours(tmp_path / "data", decryption=key), SHORT)
    same(theirs(tmp_path / "data", encryption=key), SHORT)
    if compression is None:
        assert b"plaintext" not in everything(tmp_path / "data")


@pytest.mark.parametrize("level", ["sample", "chunk"])
def test_keys_of_litdata_encrypt_here_and_ours_there(tmp_path: Path, level: Any) -> None:
    for algorithm in ("fernet", "rsa") if level == "sample" else ("fernet",):
        folder = tmp_path / algorithm
        key = THEIRS[algorithm](PASSWORD, level)
        write(folder / "ours", SHORT, encryption=key, chunk_size=4)
        same(theirs(folder / "ours", encryption=key), SHORT)
        same(ours(folder / "ours", decryption=key), SHORT)
        key = KEYS[algorithm](PASSWORD, level)
        samples = [(number, b"ab" * number) for number in range(9)]
        write_theirs(folder / "theirs", samples, encryption=key)
        same(ours(folder / "theirs", decryption=key), samples)


@pytest.mark.parametrize("level", ["sample", "chunk"])
def test_rsa_wraps_keys_for_what_it_cannot_encrypt_itself(tmp_path: Path, level: Any) -> None:
    samples = [{"data": bytes([number]) * 1000 * number} for number in range(6)]
    key = RSAEncryption(PASSWORD, level)
    write(tmp_path / "data", samples, encryption=key, chunk_size=4)
    key.save(tmp_path / "key")
    assert ours(tmp_path / "data", decryption=load_key(tmp_path / "key", PASSWORD)) == samples
    same(theirs(tmp_path / "data", encryption=key), samples)


def test_a_class_of_ones_own_in_worker_processes(tmp_path: Path) -> None:
    for level in ("sample", "chunk"):
        key = functions.Reversed()
        key.level = level
        headrace.optimize(
            functions.sample, range(60), tmp_path / level, encryption=key, chunk_size=7, num_workers=2,
            keep_data_ordered=True, **QUIET,
        )  # fmt: skip
        same(ours(tmp_path / level, decryption=key), [functions.sample(number) for number in range(60)])
        same(theirs(tmp_path / level, encryption=key), [functions.sample(number) for number in range(60)])


@pytest.mark.parametrize("compression", [None, "zstd:3"])
@pytest.mark.parametrize("level", [None, "sample", "chunk"])
def test_values_of_your_own_in_worker_processes(tmp_path: Path, level: Any, compression: str | None) -> None:
    serializers = {"point": functions.PointSerializer()}
    key = None if level is None else FernetEncryption(PASSWORD, level)
    headrace.optimize(
        functions.point, range(40), tmp_path / "data", encryption=key, compression=compression, chunk_size=7,
        num_workers=2, serializers=serializers, keep_data_ordered=True, **QUIET,
    )  # fmt: skip
    wanted = [functions.point(number) for number in range(40)]
    data = headrace.open(tmp_path / "data", decryption=key, serializers=serializers)
    assert [data[number] for number in range(40)] == wanted
    loader = headrace.DataLoader(
        data, batch_size=8, shuffle=False, num_workers=2, worker_type="process", collate_fn=list
    )
    assert [one for batch in loader for one in batch] == wanted
    same(theirs(tmp_path / "data", encryption=key, serializers=serializers), wanted)


def test_a_wrong_key_is_told_with_the_file(tmp_path: Path) -> None:
    for level in ("sample", "chunk"):
        for algorithm, make in KEYS.items():
            folder = tmp_path / level / algorithm
            write(folder, SHORT, encryption=make(PASSWORD, level), chunk_size=4)
            wanted = rf"{algorithm}/chunk-0-0.bin.*: expected what the given key opens \({algorithm}, by {level}\)"
            with pytest.raises(DataError, match=wanted) as caught:
                ours(folder, decryption=make(PASSWORD, level))
            assert PASSWORD not in str(caught.value)
            with pytest.raises(ValueError, match=rf"encrypted \({algorithm}, by {level}\)\nhint: give its key"):
                ours(folder)


# A run and its folder


def test_append_needs_the_key_that_is_there(tmp_path: Path) -> None:
    for level in ("sample", "chunk"):
        folder = tmp_path / level
        key = FernetEncryption(PASSWORD, level)
        write(folder, SHORT, encryption=key, compression="zstd")
        before = (folder / "chunk-0-0.zstd.bin").read_bytes()
        how: dict[str, Any] = {"mode": "append", "compression": "zstd"}
        with pytest.raises(DataError, match=r"chunk-0-0.zstd.bin: expected what the given key opens"):
            write(folder, SHORT, encryption=FernetEncryption(PASSWORD, level), **how)
        with pytest.raises(ValueError, match=r"expected a dataset of .*None.* found one of .*fernet"):
            write(folder, SHORT, **how)
        write(folder, SHORT, encryption=key, **how)
        same(ours(folder, decryption=key), SHORT * 2)
        assert (folder / "chunk-0-0.zstd.bin").read_bytes() == before
    with pytest.raises(ValueError, match="expected a dataset that is not encrypted"):
        headrace.merge_datasets([tmp_path / "sample", tmp_path / "sample"], tmp_path / "both")


class Counting(functions.Reversed):
    """Counts what it opens."""

    level = "chunk"
    opened = 0

    def decrypt(self, data: bytes) -> bytes:
        self.opened += 1
        return super().decrypt(data)


def test_small_chunks_do_not_open_what_waits_for_each_of_them(tmp_path: Path) -> None:
    key = Counting()
    made = write(tmp_path / "data", [{"number": number} for number in range(500)], encryption=key, chunk_size=1)
    assert made.chunks == 500
    # The key is tried twice before anything is written.
    assert 2 < key.opened < 50
    assert ours(tmp_path / "data", decryption=key) == [{"number": number} for number in range(500)]


PROGRAM = """
import sys
from pathlib import Path
import headrace, prepare_functions
from headrace.encryption import load_key
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    key = load_key(folder / "key", "correct horse battery staple")
    headrace.optimize(
        prepare_functions.Logged(folder / "log", 0.01), range(90), folder / "data", encryption=key, chunk_size=7,
        num_workers=2, keep_data_ordered=True, progress=False, verbose=False,
    )
"""


@pytest.mark.parametrize("level", ["sample", "chunk"])
def test_a_killed_run_goes_on_with_its_key_alone(tmp_path: Path, level: Any) -> None:
    key = FernetEncryption(PASSWORD, level)
    key.save(tmp_path / "key")
    (tmp_path / "program.py").write_text(PROGRAM)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "program.py", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    done = functions.Logged(tmp_path / "log", 0)
    while process.poll() is None and len(done.calls()) < 45:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = everything(tmp_path / "data")
    assert b"blocks-" in left
    assert b"journal" in left
    # Text of the samples, which lies between others in each of them, and the key in any form.
    for secret in ("ä".encode() * 3, PASSWORD.encode(), *key.__getstate__()[1:]):
        assert secret not in left
    again = functions.Logged(tmp_path / "log", 0.0)
    how: dict[str, Any] = {"chunk_size": 7, "num_workers": 2, "keep_data_ordered": True, **QUIET}
    with pytest.raises(StateMismatch, match="encrypts with another key\nhint: save a key before it is used"):
        headrace.optimize(again, range(90), tmp_path / "data", encryption=FernetEncryption(PASSWORD, level), **how)
    with pytest.raises(StateMismatch, match="encryption was"):
        headrace.optimize(again, range(90), tmp_path / "data", **how)
    before = len(again.calls())
    headrace.optimize(again, range(90), tmp_path / "data", encryption=load_key(tmp_path / "key", PASSWORD), **how)
    assert len(again.calls()) - before < 60
    same(ours(tmp_path / "data", decryption=key), functions.expected(90))
    assert not (tmp_path / "data" / ".headrace").exists()


@pytest.mark.parametrize("how,message", [
    ({"encryption": "secret"}, "encryption must be an object with algorithm, level, encrypt and decrypt, got a str"),
    ({"encryption": FernetEncryption("x"), "format": "mds"}, 'encryption is for format="litdata"'),
    ({"encryption": FernetEncryption("x"), "format": "parquet"}, "got it with format='parquet'"),
    ({"encryption": FernetEncryption("x"), "tokens": True}, "cannot be used with tokens=True"),
])  # fmt: skip
def test_arguments_are_checked_before_anything_is_written(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        write(tmp_path / "data", SHORT, **how)
    assert not (tmp_path / "data").exists()


def test_what_cannot_be_sent_to_processes_is_refused_at_once(tmp_path: Path) -> None:
    key, serializer = functions.Reversed(), functions.PointSerializer()
    for value in (key, serializer):
        vars(value)["local"] = lambda: None
    for name, value in (("encryption", key), ("serializers", {"point": serializer})):
        with pytest.raises(
            TypeError, match=f"{name} cannot be sent to worker processes: .*\nhint: define it at the top"
        ):
            write(tmp_path / "data", SHORT, num_workers=1, **{name: value})
        assert not (tmp_path / "data").exists()


def test_an_encryption_that_gives_no_bytes_or_others(tmp_path: Path) -> None:
    key: Any = functions.Reversed()
    key.decrypt = bytes
    with pytest.raises(ValueError, match=r"Reversed.decrypt must give back what encrypt was given"):
        write(tmp_path / "data", SHORT, encryption=key)
    key.encrypt = str
    with pytest.raises(TypeError, match=r"Reversed.encrypt must give bytes, got str"):
        write(tmp_path / "data", SHORT, encryption=key)
    assert not (tmp_path / "data").exists()


# Keys


@settings(max_examples=30)
@given(data=st.binary(max_size=1000), at=st.integers(0), flip=st.integers(1, 255))
def test_what_was_changed_is_never_opened(data: bytes, at: int, flip: int) -> None:
    for key in (_FERNET, _RSA):
        token = key.encrypt(data)
        assert key.decrypt(token) == data
        changed = bytearray(token)
        changed[at % len(token)] ^= flip
        try:
            found = key.decrypt(bytes(changed))
        except (ValueError, InvalidToken):
            continue
        # The last character of base64 has bits that stand for nothing.
        assert found == data


_FERNET, _RSA = FernetEncryption(PASSWORD), RSAEncryption()


def test_keys_are_saved_for_litdata_and_read_from_it(tmp_path: Path) -> None:
    key = FernetEncryption(PASSWORD, "chunk")
    key.save(tmp_path / "fernet")
    loaded = litdata.FernetEncryption.load(str(tmp_path / "fernet"), PASSWORD)
    assert (loaded.level, loaded.decrypt(key.encrypt(b"x"))) == ("chunk", b"x")
    loaded.save(str(tmp_path / "back"))
    assert load_key(tmp_path / "back", PASSWORD).decrypt(key.encrypt(b"x")) == b"x"

    rsa = RSAEncryption(PASSWORD, "chunk")
    rsa.save_keys(tmp_path / "private.pem", tmp_path / "public.pem")
    other = litdata.RSAEncryption("something else", level="chunk")
    other.load_keys(str(tmp_path / "private.pem"), str(tmp_path / "public.pem"), PASSWORD)
    assert (other.decrypt(rsa.encrypt(b"x")), rsa.decrypt(other.encrypt(b"y"))) == (b"x", b"y")
    other.password = PASSWORD
    other.save(str(tmp_path / "theirs"))
    assert load_key(tmp_path / "theirs", PASSWORD).decrypt(rsa.encrypt(b"x")) == b"x"
    open_key = RSAEncryption(None, "chunk")
    open_key.save(tmp_path / "open")
    assert litdata.RSAEncryption.load(str(tmp_path / "open"), "").decrypt(open_key.encrypt(b"x")) == b"x"


def test_a_saved_key_is_its_owners_alone_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("older")
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    key = FernetEncryption(PASSWORD, "chunk")
    key.save(tmp_path / "link")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link").is_symlink()
    assert load_key(path, PASSWORD).decrypt(key.encrypt(b"x")) == b"x"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["key", "link"]


def test_a_key_that_cannot_be_saved_leaves_the_one_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FernetEncryption(PASSWORD).save(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()

    def fails(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        RSAEncryption(PASSWORD).save(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_secrets_are_in_no_file_and_no_text(tmp_path: Path) -> None:
    for key in (FernetEncryption(PASSWORD), RSAEncryption(PASSWORD)):
        assert repr(key) == f"{type(key).__name__}(level='sample')"
        key.save(tmp_path / "key")
        assert PASSWORD not in (tmp_path / "key").read_text()
        assert b"BEGIN PRIVATE KEY" not in (tmp_path / "key").read_bytes()
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
        (tmp_path / "key").unlink()
        again = pickle.loads(pickle.dumps(key))
        assert (again.level, again.decrypt(key.encrypt(b"x"))) == ("sample", b"x")
    options = headrace.prepare.writing.Options(encryption=FernetEncryption(PASSWORD))  # pyright: ignore
    assert "encryption" not in repr(options)


def test_wrong_passwords_and_files_that_are_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    RSAEncryption(PASSWORD).save(path)
    for password, wanted in (("other", "another password or a damaged key"), (None, "the password of an encrypted")):
        with pytest.raises(ValueError, match=rf"{path}: expected .*{wanted}"):
            load_key(path, password)
    RSAEncryption().save(path)
    with pytest.raises(ValueError, match="expected no password"):
        load_key(path, PASSWORD)
    with pytest.raises(DataError, match="expected a key as litdata saves it, with a level and salt, found algorithm"):
        FernetEncryption.load(path, PASSWORD)
    path.write_text('{"level": "sample", "salt": "ä"}')
    with pytest.raises(DataError, match=rf"{path}: expected a salt in base64"):
        load_key(path, PASSWORD)
    for level, password, message in (("row", "x", "level must be"), ("sample", "", "not empty")):
        with pytest.raises(ValueError, match=message):
            FernetEncryption(password, level)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="level must be"):
        RSAEncryption(level="row")  # pyright: ignore[reportArgumentType]


def test_without_cryptography_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for make in (FernetEncryption, RSAEncryption):
        with pytest.raises(ImportError, match=r"hint: pip install 'headrace\[encryption\]'"):
            make(PASSWORD)
