//! Memory shared with Python by the buffer protocol: ours that it sees, and its that we read.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use headrace::engine::{Array, Numbers, Slot};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// What a buffer holds on to.
enum Memory {
    /// Of a batch: used again when no view of it is left.
    Array(Array),
    /// Gathered rows: the same.
    Slot(Slot<u8>),
    Bytes(Vec<u8>),
    U32(Vec<u32>),
    I64(Vec<i64>),
    /// Numbers of a column, of whatever type: as bytes.
    Arrow(arrow::buffer::Buffer),
}

/// The memory of one array, by the buffer protocol.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Buffer {
    memory: Memory,
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

/// Address, bytes of a number, numbers, `struct` format, and whether it may be written.
struct Parts {
    start: *const c_void,
    size: usize,
    len: usize,
    format: &'static CStr,
    readonly: bool,
}

impl Memory {
    fn parts(&self) -> Parts {
        let of = |start: *const c_void, size, len, format| Parts { start, size, len, format, readonly: true };
        match self {
            // A batch is the only holder of its memory: Python may write it, and nothing in Rust reads it afterwards
            // but exports of the same batch.
            Self::Array(array) => Parts {
                readonly: false,
                ..match &array.numbers {
                    Numbers::I32(slot) => of(slot.as_ptr().cast(), 4, slot.len(), c"i"),
                    Numbers::I64(slot) => of(slot.as_ptr().cast(), 8, slot.len(), c"q"),
                    Numbers::U8(slot) => of(slot.as_ptr().cast(), 1, slot.len(), c"B"),
                }
            },
            Self::Slot(slot) => Parts { readonly: false, ..of(slot.as_ptr().cast(), 1, slot.len(), c"B") },
            Self::Bytes(bytes) => of(bytes.as_ptr().cast(), 1, bytes.len(), c"B"),
            Self::U32(numbers) => of(numbers.as_ptr().cast(), 4, numbers.len(), c"I"),
            Self::I64(numbers) => of(numbers.as_ptr().cast(), 8, numbers.len(), c"q"),
            Self::Arrow(bytes) => of(bytes.as_ptr().cast(), 1, bytes.len(), c"B"),
        }
    }
}

impl Buffer {
    fn new(memory: Memory, width: Option<usize>) -> Self {
        let Parts { size, len, .. } = memory.parts();
        let shape = match width {
            Some(width) => vec![len / width.max(1), width],
            None => vec![len],
        };
        let mut strides = vec![size; shape.len()];
        if let Some(width) = width {
            strides[0] = width * size;
        }
        let signed = |sizes: Vec<usize>| sizes.into_iter().map(|size| size as ffi::Py_ssize_t).collect();
        Self { memory, shape: signed(shape), strides: signed(strides) }
    }

    /// An array of a batch.
    pub(crate) fn array(array: Array) -> Self {
        let width = array.width;
        Self::new(Memory::Array(array), width)
    }

    /// Gathered rows, of which this is the only holder.
    pub(crate) fn slot(slot: Slot<u8>) -> Self {
        Self::new(Memory::Slot(slot), None)
    }

    /// Bytes.
    pub(crate) fn bytes(bytes: Vec<u8>) -> Self {
        Self::new(Memory::Bytes(bytes), None)
    }

    /// Numbers of 32 bits, not signed.
    pub(crate) fn u32(numbers: Vec<u32>) -> Self {
        Self::new(Memory::U32(numbers), None)
    }

    /// The bytes of a column's numbers.
    pub(crate) fn arrow(bytes: arrow::buffer::Buffer) -> Self {
        Self::new(Memory::Arrow(bytes), None)
    }

    /// Counts, which are far below 2^63.
    pub(crate) fn counts(counts: Vec<u64>) -> Self {
        Self::i64(counts.into_iter().map(|count| i64::try_from(count).unwrap_or(i64::MAX)).collect())
    }

    /// Numbers of 64 bits.
    pub(crate) fn i64(numbers: Vec<i64>) -> Self {
        Self::new(Memory::I64(numbers), None)
    }
}

#[pymethods]
impl Buffer {
    /// Of the first dimension: bytes of bytes, numbers of numbers.
    fn __len__(&self) -> usize {
        self.shape[0] as usize
    }

    /// # Safety
    /// Called by the interpreter, which gives a `view` that is valid for writing, or null.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let this = slf.get();
        let Parts { start, size, len, format, readonly } = this.memory.parts();
        let wants = |flag: c_int| flags & flag == flag;
        if readonly && wants(ffi::PyBUF_WRITABLE) {
            // SAFETY: as below. A caller may look at `obj` after an error.
            unsafe { (*view).obj = ptr::null_mut() };
            return Err(PyBufferError::new_err("the memory is read-only"));
        }
        let (shape, strides) = (this.shape.as_ptr().cast_mut(), this.strides.as_ptr().cast_mut());
        // SAFETY: `view` is valid for writing (checked above, and the caller's contract). What it points to lives as
        // long as `obj`, a new reference to this object, which owns the memory or a part of the arena and never moves
        // or changes it. What may be written is read by nothing in Rust, see `Memory::parts`.
        unsafe {
            (*view).buf = start.cast_mut();
            (*view).len = (size * len) as ffi::Py_ssize_t;
            (*view).readonly = c_int::from(readonly);
            (*view).itemsize = size as ffi::Py_ssize_t;
            (*view).format = if wants(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = this.shape.len() as c_int;
            (*view).shape = if wants(ffi::PyBUF_ND) { shape } else { ptr::null_mut() };
            (*view).strides = if wants(ffi::PyBUF_STRIDES) { strides } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.clone().into_any().into_ptr();
        }
        Ok(())
    }
}

/// Bytes of a Python object, readable while detached.
pub(crate) struct View(PyBuffer<u8>);

impl View {
    /// The object's memory, which must be contiguous bytes.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if buffer.as_slice_ptr().is_none() {
            return Err(PyValueError::new_err("expected contiguous bytes, got a view with gaps"));
        }
        Ok(Self(buffer))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.0.as_slice_ptr() {
            // SAFETY: the buffer is held, so that its owner neither frees nor moves the memory. As with every reader
            // of Python buffers, another thread must not write it meanwhile; of bytes any value is valid, and nothing
            // that is decided by one of them is relied on after it is read again.
            Some(bytes) => unsafe { bytes.as_ref() },
            None => &[],
        }
    }
}

/// 64-bit numbers of a Python object.
pub(crate) fn numbers(object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    PyBuffer::<i64>::get(object)?.to_vec(object.py())
}
