"""Sound, video, PDF, volumes, meshes, TIFF and graphs: files that their packages made, in samples of each format."""

import gzip
import importlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headrace
import prepare_functions as functions
from headrace.encryption import FernetEncryption
from headrace.errors import DataError
from litdata_files import same, theirs
from litdata_files import write as write_theirs

import litdata.types as kinds  # isort: skip
from litdata.streaming import serializers as stored  # isort: skip

with_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")
av, nibabel, pdfplumber, tifffile, trimesh = map(
    importlib.import_module, ("av", "nibabel", "pdfplumber", "tifffile", "trimesh")
)
graphs = importlib.import_module("torch_geometric.data")

QUIET: dict[str, Any] = {"num_workers": 0, "progress": False, "verbose": False, "keep_data_ordered": True}
BYTES = {"audio": stored.AudioSerializer(decode="bytes"), "video": stored.VideoSerializer(decode="bytes")}
"""litdata decodes these with torchcodec alone, which needs libraries of FFmpeg."""

SOUND = np.linspace(-1, 1, 800, dtype=np.float32).reshape(2, 400)
VOLUME = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PIXELS = np.arange(8 * 16 * 3, dtype=np.uint16).reshape(8, 16, 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small file of each kind."""
    folder = tmp_path_factory.mktemp("media")
    for name in ("wav", "flac", "ogg"):
        soundfile.write(folder / f"sound.{name}", SOUND.T, 8000)
    with av.open(str(folder / "clip.mp4"), "w") as out:
        stream = out.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for number in range(4):
            picture = np.full((16, 32, 3), number * 60, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode())
    Image.new("RGB", (50, 70), "red").save(
        folder / "paper.pdf", save_all=True, append_images=[Image.new("L", (20, 30))]
    )
    volume = nibabel.Nifti1Image(VOLUME, np.diag([2.0, 2, 2, 1]))
    for name in ("volume.nii", "volume.nii.gz"):
        nibabel.save(volume, folder / name)
    nibabel.save(nibabel.Nifti2Image(VOLUME, np.eye(4)), folder / "second.nii")
    for name in ("glb", "ply", "stl"):
        trimesh.creation.box((1, 2, 3)).export(str(folder / f"box.{name}"))
    tifffile.imwrite(folder / "picture.tif", PIXELS)
    return {path.name: path for path in folder.iterdir()}


def write(folder: Path, samples: list[Any], **how: Any) -> headrace.Prepared:
    return headrace.optimize(samples.__getitem__, range(len(samples)), folder, **{**QUIET, **how})


def ours(folder: Path, **how: Any) -> list[Any]:
    data = headrace.open(folder, **how)
    return [data[number] for number in range(len(data))]


def media(files: dict[str, Path], of: Any = headrace) -> dict[str, Any]:
    """Values of each kind, of headrace's classes or litdata's."""
    made: dict[str, tuple[str, ...]] = {
        "Audio": ("sound.wav", "sound.flac", "sound.ogg"),
        "Video": ("clip.mp4",),
        "Pdf": ("paper.pdf",),
        "Nifti": ("volume.nii", "volume.nii.gz"),
        "Mesh": ("box.glb", "box.ply", "box.stl"),
        "File": ("picture.tif",),
    }
    path: Callable[[str], Any] = (lambda name: files[name]) if of is headrace else (lambda name: str(files[name]))
    make = (lambda kind, name: getattr(of, kind)(path(name))) if of is headrace else (
        lambda kind, name: getattr(of, kind)(path=path(name))
    )  # fmt: skip
    return {f"{kind} {name}": make(kind, name) for kind, names in made.items() for name in names}


def content(value: Any) -> Any:
    """What is in media, whoever decoded it, as arrays."""
    if isinstance(value, headrace.media.Encoded):
        value = value.encoded() if isinstance(value, headrace.Audio | headrace.Video) else value.decode()  # pyright: ignore
    if isinstance(value, nibabel.spatialimages.SpatialImage):
        return value.get_fdata(), value.affine
    if isinstance(value, trimesh.Scene):
        value = value.to_geometry()
    if isinstance(value, trimesh.Trimesh):
        return np.asarray(value.vertices), np.asarray(value.faces)
    if isinstance(value, pdfplumber.pdf.PDF):
        pages = [np.array([page.width, page.height, len(page.images)]) for page in value.pages]
        value.close()
        return tuple(pages)
    return value


def alike(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert list(one) == list(two)
    for name in one:
        left, right = content(one[name]), content(two[name])
        assert type(left) is type(right), name
        for a, b in zip(*(part if isinstance(part, tuple) else (part,) for part in (left, right)), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


# LitData


@with_warnings
@pytest.mark.parametrize("how", [{}, {"compression": "zstd"}, {"encryption": FernetEncryption("x")}])
def test_litdata_reads_each_kind_of_file_and_so_do_we(tmp_path: Path, files: dict[str, Path], how: Any) -> None:
    sample = media(files)
    write(tmp_path / "data", [sample] * 3, **how)
    key = how.get("encryption")
    found = ours(tmp_path / "data", decryption=key)
    for one, other in zip(found, theirs(tmp_path / "data", encryption=key, serializers=BYTES), strict=True):
        alike(one, other)
    for name, value in found[0].items():
        given = sample[name]
        kind = bytes if name.startswith("File") else type(given)
        assert type(value) is kind
        assert (value if kind is bytes else value.encoded()) == files[name.split()[1]].read_bytes()
    assert [found[0][f"Mesh box.{name}"].file_type for name in ("glb", "ply", "stl")] == ["glb", "ply", "stl"]


@with_warnings
def test_what_litdata_wrote_is_read_and_added_to(tmp_path: Path, files: dict[str, Path]) -> None:
    folder = write_theirs(tmp_path / "data", [media(files, kinds)] * 2, chunk_size=3)
    for one, other in zip(ours(folder), theirs(folder, serializers=BYTES), strict=True):
        alike(one, other)
    write(folder, [media(files)], mode="append")
    found = ours(folder)
    assert len(found) == 3
    alike(found[0], found[2])
    raw = ours(folder, serializers={"audio": bytes, "video": bytes, "nifti": bytes, "mesh": bytes, "pdf": bytes})
    assert all(type(value) is bytes for value in raw[2].values())


def test_an_image_is_an_array_again(tmp_path: Path) -> None:
    image = headrace.Image(PIXELS.astype(np.uint8))
    (tmp_path / "a.png").write_bytes(image.encoded())
    for one in (image, headrace.Image(image.encoded()), headrace.Image(tmp_path / "a.png")):
        found = one.decode()
        assert np.array_equal(found, PIXELS.astype(np.uint8))
        assert found.flags.writeable
    with pytest.raises(OSError, match="cannot identify image file"):
        headrace.Image(b"none").decode()


def test_tiff_is_an_array_again(tmp_path: Path, files: dict[str, Path]) -> None:
    write(tmp_path / "data", [{"path": headrace.Tiff(files["picture.tif"]), "array": headrace.Tiff(PIXELS)}])
    for (found,) in (ours(tmp_path / "data"), theirs(tmp_path / "data")):
        for name in ("path", "array"):
            assert found[name].dtype == np.uint16
            np.testing.assert_array_equal(found[name], PIXELS)
    (kept,) = ours(tmp_path / "data", serializers={"tifffile": headrace.Tiff})
    assert kept["path"].encoded() == files["picture.tif"].read_bytes()
    np.testing.assert_array_equal(kept["array"].decode(), PIXELS)


def graph_data() -> Any:
    names = ["a", "b", "c"]
    return graphs.Data(
        x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor(1.5), num_nodes=3, names=names,
        twice=[names, names], half=torch.ones(2, dtype=torch.bfloat16), none=None,
    )  # fmt: skip


def graph_hetero() -> Any:
    data = graphs.HeteroData()
    data["user"].x = torch.rand(2, 2)
    data["item"].x = torch.rand(3, 1).T
    data["user", "likes", "item"].edge_index = torch.tensor([[0], [1]])
    data["user", "likes", "item"].edge_attr = torch.rand(1, 4)
    data.label = "whole"
    return data


@pytest.mark.parametrize("make", [graph_data, graph_hetero])
def test_graphs_come_back_as_they_were(
    tmp_path: Path, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [make() for _ in range(3)]
    write(tmp_path / "data", [{"graph": one, "number": 1} for one in made], chunk_size=2)
    wanted = [str(one.to_dict()) for one in made]
    for found in (ours(tmp_path / "data"), theirs(tmp_path / "data")):
        assert {type(one["graph"]) for one in found} == {type(made[0])}
        assert [str(one["graph"].to_dict()) for one in found] == wanted
    for format in ("mds", "parquet", "arrow"):
        write(tmp_path / format, [{"graph": one} for one in made], format=format)
        assert [str(headrace.Graph(one["graph"]).decode().to_dict()) for one in ours(tmp_path / format)] == wanted
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    parts = ours(tmp_path / "data", tensors="torch")[0]["graph"]
    assert str({**parts, **{name: parts[name] for name in made[0].to_dict()}}) == str(parts)
    assert str({name: parts[name] for name in made[0].to_dict()}) == wanted[0]


def test_graphs_of_arrays_need_no_torch(tmp_path: Path) -> None:
    parts = {
        "x": np.ones((2, 2), ">f4"),
        "edge_index": np.array([[0], [1]]),
        "deep": {"a": {1: np.arange(3)}, "b": (1, 2.5)},
    }
    write(tmp_path / "data", [{"graph": headrace.Graph(parts)}])
    for (found,) in (ours(tmp_path / "data"), theirs(tmp_path / "data")):
        assert found["graph"].x.tolist() == [[1, 1], [1, 1]]
        assert found["graph"].deep["b"] == (1, 2.5)
        assert found["graph"].deep["a"][1].tolist() == [0, 1, 2]
    for wrong, message in (
        (
            {"x": torch.ones(2).to_sparse()},
            "key 'graph.x': expected a tensor that holds all of its values, found one of layout",
        ),
        ({"x": {"y": object()}}, "key 'graph.x.y': expected tensors, arrays, text, numbers"),
        ({"x": np.float32(1)}, "key 'graph.x': expected tensors, arrays, text, numbers .* found numpy.float32"),
        ({"x": np.array(["a"])}, "key 'graph.x': expected an array of"),
        ({None: 1}, "expected keys of text in a graph, found None"),
    ):
        with pytest.raises(TypeError, match=message):
            write(tmp_path / "wrong", [{"graph": headrace.Graph(wrong)}])


_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_NAMES = st.text(max_size=5) | st.integers() | st.tuples(st.text(max_size=3), st.text(max_size=3))
_PARTS = st.recursive(
    st.integers(0, 3).map(lambda size: np.arange(size * 2, dtype=np.int16).reshape(size, 2))
    | _PLAIN
    | st.lists(_PLAIN | st.lists(_PLAIN, max_size=2), max_size=3),
    lambda inner: st.dictionaries(_NAMES, inner, max_size=3),
)


@given(parts=st.dictionaries(_NAMES, _PARTS, max_size=4))
def test_any_parts_of_a_graph_come_back(parts: dict[Any, Any]) -> None:
    data = headrace.Graph(parts).encoded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch_geometric.data", None)
        found = headrace.Graph(data).decode()
    same_parts(found, parts)
    names = [field for field in (b"_tree", b"_paths", b"_fields", b"_cls") if field in data]
    assert len(names) == 4


def same_parts(one: Any, two: Any) -> None:
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert list(one) == list(two)
        for key in one:
            same_parts(one[key], two[key])
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tolist()) == (two.dtype, two.shape, two.tolist())
    else:
        assert one == two


# Made here


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("shape", [(401,), (1, 7), (3, 50)])
def test_sound_of_arrays_is_kept_to_the_bit(kind: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    array: Any = random.uniform(-1, 1, shape).astype(kind)
    if np.dtype(kind).kind != "f":
        array = random.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
    for source in (array, torch.from_numpy(array), array.astype(array.dtype.newbyteorder(">"))):
        audio = headrace.Audio(source, sampling_rate=44_100)
        with soundfile.SoundFile(io.BytesIO(audio.encoded())) as file:
            assert (file.samplerate, file.channels, file.frames) == (44_100, len(np.atleast_2d(array)), array.shape[-1])
            # soundfile has no uint8: the highest of 16 bits are those of 8, whose middle is 128.
            found = file.read(dtype="int16" if kind == "uint8" else kind, always_2d=True).T
        wanted = (array.astype(np.int16) - 128) * 256 if kind == "uint8" else array
        np.testing.assert_array_equal(found, np.atleast_2d(wanted))
        samples, rate = audio.decode()
        assert (samples.dtype, samples.shape, rate) == (np.float32, found.shape, 44_100)


def test_what_packages_made_is_encoded(files: dict[str, Path]) -> None:
    image = nibabel.load(files["volume.nii"])
    affine = np.diag([3.0, 3, 3, 1])
    for source in (
        headrace.Nifti(image),
        headrace.Nifti(VOLUME),
        headrace.Nifti(torch.from_numpy(VOLUME), affine=affine),
    ):
        np.testing.assert_array_equal(source.decode().get_fdata(), VOLUME)
    np.testing.assert_array_equal(headrace.Nifti(VOLUME, affine=affine).decode().affine, affine)
    np.testing.assert_array_equal(headrace.Nifti(image).decode().affine, image.affine)
    second = headrace.Nifti(gzip.compress(files["second.nii"].read_bytes())).decode()
    assert type(second) is nibabel.Nifti2Image
    np.testing.assert_array_equal(second.get_fdata(), VOLUME)
    box = trimesh.creation.box((1, 2, 3))
    for file_type in (None, "glb", "ply", "stl"):
        mesh = headrace.Mesh(box, file_type=file_type)
        assert mesh.file_type == (file_type or "glb")
        assert headrace.Mesh(mesh.encoded()).file_type == mesh.file_type
        found = mesh.decode()
        assert sorted(np.ptp(found.bounds, axis=0)) == [1, 2, 3]
    with headrace.Video(files["clip.mp4"]).decode() as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert [round(float(frame.mean()) / 60) for frame in frames] == [0, 1, 2, 3]


# Other formats, processes, loaders


@pytest.mark.parametrize("format", ["mds", "parquet", "arrow"])
def test_other_formats_hold_the_bytes(tmp_path: Path, files: dict[str, Path], format: str) -> None:
    sample = media(files) | {"tiff": headrace.Tiff(PIXELS), "made": headrace.Audio(SOUND, sampling_rate=8000)}
    write(tmp_path / "data", [sample] * 2, format=format)
    for found in ours(tmp_path / "data"):
        assert found == {name: value.encoded() for name, value in sample.items()}
        np.testing.assert_array_equal(headrace.Audio(found["made"]).decode()[0], SOUND)
        np.testing.assert_array_equal(headrace.Mesh(found["Mesh box.ply"]).decode().bounds[1], [0.5, 1, 1.5])


def test_media_through_processes_and_batches(tmp_path: Path) -> None:
    key = FernetEncryption("x", "chunk")
    how: dict[str, Any] = {**QUIET, "num_workers": 2, "encryption": key, "compression": "zstd"}
    headrace.optimize(functions.sound, range(12), tmp_path / "data", chunk_size=5, **how)
    data = headrace.open(tmp_path / "data", decryption=key)
    assert data.schema == {"sound": "audio", "number": "int"}
    loader = headrace.DataLoader(data, batch_size=4, shuffle=False, num_workers=2, worker_type="process")
    seen = 0
    for batch in loader:
        for number, audio in zip(batch["number"].tolist(), batch["sound"], strict=True):
            assert audio.decode()[0].tolist() == [[number / 2**15]]
            seen += 1
    assert seen == 12


def test_convert_keeps_what_files_are(tmp_path: Path, files: dict[str, Path]) -> None:
    from headrace.cli import convert

    sample = media(files) | {"tiff": headrace.Tiff(PIXELS), "graph": headrace.Graph({"x": np.ones((1, 1), np.float32)})}
    write(tmp_path / "data", [sample] * 2)
    convert.run(
        [str(tmp_path / "data")], str(tmp_path / "again"), to="litdata", chunk_bytes=None, chunk_size=None,
        compression=None, mode=None, workers=0, format=None, stored_dtype=None, sequence_length=None, column=None,
        keep=None, dtype=None, resume=True, storage_option=None, output_option=None, as_json=True,
    )  # fmt: skip
    name = "chunk-0-0.bin"
    assert (tmp_path / "data" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


# What cannot be


def test_sources_that_are_none() -> None:
    for make, message in (
        (
            lambda: headrace.Video(np.zeros((1, 2, 2, 3))),
            "Video takes a path or bytes of an encoded video, got ndarray",
        ),
        (lambda: headrace.Audio(3), "Audio takes a path, bytes or an array, got int"),
        (lambda: headrace.Audio(b"RIFF", sampling_rate=1), "sampling_rate is for arrays, got one for bytes"),
        (lambda: headrace.Audio(SOUND), "sampling_rate must be the frames a second of an array, got None"),
        (
            lambda: headrace.Audio(SOUND.astype(np.float16), sampling_rate=1),
            "sound must be an array of .* got one of float16",
        ),
        (lambda: headrace.Audio(VOLUME, sampling_rate=1), r"or \(channels, frames\), got \(2, 3, 4\)"),
        (lambda: headrace.Nifti("a.nii", affine=np.eye(4)), "affine is for arrays, got one for str"),
        (lambda: headrace.Audio(SOUND, sampling_rate=1.5), "sampling_rate must be an integer, got 1.5"),
        (lambda: headrace.Image(b"", quality="90"), "quality must be an integer, got '90'"),
        (lambda: headrace.Image(b"", quality=101), "quality must be at most 100, got 101"),
        (
            lambda: headrace.Image(np.zeros((4, 4), np.uint8), quality=90, format="png"),
            "quality is for formats that lose something",
        ),
        (lambda: headrace.Image(np.zeros((4, 4), np.float32)), r"must be an array of uint8, got one of float32\nhint"),
        (lambda: headrace.Image(np.zeros((4, 4), np.int32)), "an image must be an array of uint8, got one of int32"),
        (lambda: headrace.Image(np.zeros((2, 4, 4, 3), np.uint8)), "an image must be of shape"),
        (lambda: headrace.Nifti(5), "Nifti takes a path, bytes, an image of nibabel or an array, got int"),
        (lambda: headrace.Mesh(b"v 0 0 0\n"), "file_type must be given of a mesh whose bytes do not say it"),
        (lambda: headrace.Mesh("mesh"), "file_type must be a word like \"glb\", got ''"),
        (
            lambda: headrace.Graph([1]),
            "Graph takes a graph of torch_geometric, a dict of its parts, or bytes, got list",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make()
    assert headrace.Audio(SOUND, sampling_rate=np.int64(8000)).encoded()  # pyright: ignore[reportArgumentType]
    assert headrace.Mesh(bytes(80) + b"\1\0\0\0" + bytes(50)).file_type == "stl"
    shown = [headrace.Audio("a.wav"), headrace.Pdf(b"1234" * 1000), headrace.Tiff(PIXELS)]
    assert [repr(value) for value in shown] == ["Audio('a.wav')", "Pdf(4,000 bytes)", "Tiff(ndarray)"]


def test_samples_whose_media_are_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for first, other, message in (
        (headrace.Audio(b"a"), headrace.Video(b"b"), "headrace.Audio as in the first sample, found headrace.Video"),
        (headrace.Mesh(b"ply"), headrace.Mesh(b"glTF"), "a mesh as ply as in the first sample, found one as glb"),
        (headrace.Graph({"a": np.eye(2)}), {"a": 1}, "a graph as in the first sample, found dict"),
    ):
        with pytest.raises(TypeError, match=f"key 'x': expected {message}"):
            write(tmp_path / "data", [{"x": first}, {"x": other}], resume=False)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.wav"):
        write(tmp_path / "missing", [{"x": headrace.Audio("nowhere.wav")}])


@pytest.mark.parametrize("name,make", [
    ("soundfile", lambda: headrace.Audio(b"").decode()), ("av", lambda: headrace.Video(b"").decode()),
    ("pdfplumber", lambda: headrace.Pdf(b"").decode()), ("nibabel", lambda: headrace.Nifti(b"").decode()),
    ("trimesh", lambda: headrace.Mesh(b"ply").decode()), ("tifffile", lambda: headrace.Tiff(PIXELS).encoded()),
])  # fmt: skip
def test_without_a_package_it_says_what_to_install(name: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"by {name}, which cannot be imported.*\nhint: pip install {name}"):
        make()


# Tensors

TENSORS = {
    "0-d": torch.tensor(1.5),
    "bfloat16": torch.arange(4, dtype=torch.bfloat16),
    "bfloat16 0-d": torch.tensor(2.5, dtype=torch.bfloat16),
    "bfloat16 turned": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
    "strided": torch.arange(24).reshape(4, 6)[::2, 1::2],
    "strided row": torch.arange(10)[::3],
    "expanded": torch.tensor([[1], [2]]).expand(2, 3),
    "conjugated": torch.tensor([[1 + 2j, 3 - 1j]]).conj(),
    "negated": torch.tensor([[1 + 2j, 3 - 1j]]).conj().imag,
    "with a gradient": torch.ones(2, 2, requires_grad=True),
    "empty": torch.zeros(0, 3),
}


def test_tensors_of_any_kind_come_back(tmp_path: Path) -> None:
    write(tmp_path / "data", [TENSORS] * 2)
    wanted = {name: tensor.detach().resolve_conj().resolve_neg().contiguous() for name, tensor in TENSORS.items()}
    for found in (*ours(tmp_path / "data", tensors="torch"), *theirs(tmp_path / "data")):
        same(found, wanted)


def test_tensors_that_cannot_be_stored(tmp_path: Path) -> None:
    one = torch.ones(2, 2)
    for tensor, message in (
        (one.to(torch.float8_e4m3fn), "a tensor of .* or bfloat16, found one of float8_e4m3fn"),
        (one.to_sparse(), "a tensor that holds all of its values, found one of layout torch.sparse_coo"),
        (torch.ones(2, 2, device="meta"), "a tensor that holds all of its values, found one on the meta device"),
    ):
        with pytest.raises(TypeError, match=f"key 'x': expected {message}"):
            write(tmp_path / "data", [{"x": tensor}])
    for format, message in (("mds", "a type that NumPy has, found one of bfloat16"), ("parquet", "that Arrow has")):
        with pytest.raises(TypeError, match=message):
            write(tmp_path / format, [{"x": TENSORS["bfloat16"]}], format=format)
    write(tmp_path / "kept", [{"x": TENSORS["bfloat16"]}])
    with pytest.raises(DataError, match='hint: say tensors="torch"'):
        ours(tmp_path / "kept")
