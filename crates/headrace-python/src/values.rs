//! Arrow values as Python's.
//!
//! | Arrow | Python |
//! | --- | --- |
//! | null | `None` |
//! | bool, integers, floats (16 bits too) | `bool`, `int`, `float` |
//! | utf8 (large, view) | `str` |
//! | binary (large, view, fixed size) | `bytes` |
//! | decimal | `decimal.Decimal` |
//! | date, time, timestamp | `datetime.date`, `.time`, `.datetime` |
//! | duration | `datetime.timedelta` |
//! | list (large, view, fixed size) of numbers, none of them null | one-dimensional NumPy array with its own memory |
//! | other lists | `list` |
//! | struct, map | `dict`, `list` of `(key, value)` |
//! | dictionary, run-end encoded, union | the value |
//! | interval | `(months, days, nanoseconds)` |
//!
//! A time with a part below a microsecond, or one beyond the years of Python's types, is a `numpy.datetime64` (in UTC)
//! or `numpy.timedelta64`. Extension types are their storage.

use arrow::array::cast::AsArray;
use arrow::array::types::*;
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, OffsetSizeTrait, PrimitiveArray, downcast_integer_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use pyo3::exceptions::{PyNotImplementedError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// The days from year 1 to 1970, as `date.toordinal` counts them.
const EPOCH_ORDINAL: i64 = 719_163;
const DAY_SECONDS: i64 = 86_400;

/// Python's side of it.
struct Helpers {
    from_ordinal: Py<PyAny>,
    time: Py<PyAny>,
    timedelta: Py<PyAny>,
    timezone: Py<PyAny>,
    /// 1970, without a time zone and in UTC.
    epochs: [Py<PyAny>; 2],
    decimal: Py<PyAny>,
    zone_info: Py<PyAny>,
    frombuffer: Py<PyAny>,
    datetime64: Py<PyAny>,
    timedelta64: Py<PyAny>,
    dtype: Py<PyAny>,
}

static HELPERS: PyOnceLock<Helpers> = PyOnceLock::new();

fn helpers(py: Python<'_>) -> PyResult<&'static Helpers> {
    HELPERS.get_or_try_init(py, || {
        let (datetime, numpy) = (py.import("datetime")?, py.import("numpy")?);
        let utc = datetime.getattr("timezone")?.getattr("utc")?;
        let epoch = datetime.getattr("datetime")?.call1((1970, 1, 1))?;
        let in_utc = datetime.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?;
        Ok(Helpers {
            from_ordinal: datetime.getattr("date")?.getattr("fromordinal")?.unbind(),
            time: datetime.getattr("time")?.unbind(),
            timedelta: datetime.getattr("timedelta")?.unbind(),
            timezone: datetime.getattr("timezone")?.unbind(),
            epochs: [epoch.unbind(), in_utc.unbind()],
            decimal: py.import("decimal")?.getattr("Decimal")?.unbind(),
            zone_info: py.import("zoneinfo")?.getattr("ZoneInfo")?.unbind(),
            frombuffer: numpy.getattr("frombuffer")?.unbind(),
            datetime64: numpy.getattr("datetime64")?.unbind(),
            timedelta64: numpy.getattr("timedelta64")?.unbind(),
            dtype: numpy.getattr("dtype")?.unbind(),
        })
    })
}

/// Memory as a NumPy array.
pub(crate) fn from_buffer<'py>(
    py: Python<'py>,
    memory: impl IntoPyObject<'py>,
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    helpers(py)?.frombuffer.bind(py).call1((memory, dtype))
}

/// NumPy's name of a type of numbers.
pub(crate) fn dtype<'py>(py: Python<'py>, kind: &DataType) -> PyResult<Option<Bound<'py, PyAny>>> {
    let name = match kind {
        DataType::Int8 => "i1",
        DataType::Int16 => "i2",
        DataType::Int32 => "i4",
        DataType::Int64 => "i8",
        DataType::UInt8 => "u1",
        DataType::UInt16 => "u2",
        DataType::UInt32 => "u4",
        DataType::UInt64 => "u8",
        DataType::Float16 => "f2",
        DataType::Float32 => "f4",
        DataType::Float64 => "f8",
        _ => return Ok(None),
    };
    helpers(py)?.dtype.bind(py).call1((name,)).map(Some)
}

/// Numbers as they lie in memory.
pub(crate) struct Raw {
    pub(crate) buffer: Buffer,
    pub(crate) dtype: Py<PyAny>,
    width: usize,
    nulls: Option<NullBuffer>,
}

impl Raw {
    /// Those of an array of numbers; `None` for any other.
    pub(crate) fn new(py: Python<'_>, array: &dyn Array) -> PyResult<Option<Self>> {
        let (Some(dtype), Some(width)) = (dtype(py, array.data_type())?, array.data_type().primitive_width()) else {
            return Ok(None);
        };
        let data = array.to_data();
        let buffer = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
        Ok(Some(Self { buffer, dtype: dtype.unbind(), width, nulls: array.logical_nulls() }))
    }

    /// Copies some of them; `None` if one is null.
    pub(crate) fn copy<'py>(&self, py: Python<'py>, start: usize, len: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.slice(start, len).null_count() > 0) {
            return Ok(None);
        }
        let bytes = &self.buffer[start * self.width..(start + len) * self.width];
        from_buffer(py, PyByteArray::new(py, bytes), self.dtype.bind(py)).map(Some)
    }
}

/// A column, ready to give values one by one.
pub(crate) struct Column {
    nulls: Option<NullBuffer>,
    values: Values,
}

enum Values {
    Null,
    /// Scalars, which are looked at by their type.
    Scalar(ArrayRef),
    Time(ArrayRef, TimeUnit),
    Timestamp(ArrayRef, TimeUnit, Option<Py<PyAny>>),
    Duration(ArrayRef, TimeUnit),
    /// Bounds of each list among its elements.
    List(Vec<(usize, usize)>, Box<Elements>),
    FixedList(usize, Box<Elements>),
    Map(Vec<(usize, usize)>, Box<[Column; 2]>),
    Struct(Vec<(Py<PyString>, Column)>),
    /// Which of the values each is.
    Indirect(Vec<usize>, Box<Column>),
    /// Which column, and which value of it.
    Union(Vec<(usize, usize)>, Vec<Column>),
}

struct Elements {
    column: Column,
    raw: Option<Raw>,
}

impl Elements {
    fn new(py: Python<'_>, array: &ArrayRef) -> PyResult<Box<Self>> {
        Ok(Box::new(Self { column: Column::new(py, array)?, raw: Raw::new(py, array.as_ref())? }))
    }

    fn list<'py>(&self, py: Python<'py>, start: usize, len: usize) -> PyResult<Bound<'py, PyAny>> {
        if let Some(raw) = &self.raw
            && let Some(numbers) = raw.copy(py, start, len)?
        {
            return Ok(numbers);
        }
        let list = PyList::empty(py);
        for at in start..start + len {
            list.append(self.column.get(py, at)?)?;
        }
        Ok(list.into_any())
    }
}

fn bounds<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<(usize, usize)> {
    offsets.windows(2).map(|pair| (pair[0].as_usize(), pair[1].as_usize() - pair[0].as_usize())).collect()
}

impl Column {
    pub(crate) fn new(py: Python<'_>, array: &ArrayRef) -> PyResult<Self> {
        // A dictionary's nulls may be among its values: those are found when a value is looked at.
        let nulls = array.nulls().cloned();
        let values = match array.data_type() {
            DataType::Null => Values::Null,
            DataType::Time32(unit) | DataType::Time64(unit) => Values::Time(array.clone(), *unit),
            DataType::Timestamp(unit, zone) => {
                let zone = zone.as_deref().map(|name| time_zone(py, name)).transpose()?;
                Values::Timestamp(array.clone(), *unit, zone)
            }
            DataType::Duration(unit) => Values::Duration(array.clone(), *unit),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                Values::List(bounds(list.value_offsets()), Elements::new(py, list.values())?)
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                Values::List(bounds(list.value_offsets()), Elements::new(py, list.values())?)
            }
            DataType::ListView(_) => {
                let list = array.as_list_view::<i32>();
                let pairs = list.offsets().iter().zip(list.sizes());
                let bounds = pairs.map(|(start, len)| (*start as usize, *len as usize)).collect();
                Values::List(bounds, Elements::new(py, list.values())?)
            }
            DataType::LargeListView(_) => {
                let list = array.as_list_view::<i64>();
                let pairs = list.offsets().iter().zip(list.sizes());
                let bounds = pairs.map(|(start, len)| (*start as usize, *len as usize)).collect();
                Values::List(bounds, Elements::new(py, list.values())?)
            }
            DataType::FixedSizeList(_, _) => {
                let list = array.as_fixed_size_list();
                Values::FixedList(list.value_length() as usize, Elements::new(py, list.values())?)
            }
            DataType::Map(_, _) => {
                let map = array.as_map();
                let columns = [Self::new(py, map.keys())?, Self::new(py, map.values())?];
                Values::Map(bounds(map.value_offsets()), Box::new(columns))
            }
            DataType::Struct(fields) => {
                let columns = fields.iter().zip(array.as_struct().columns());
                let columns = columns
                    .map(|(field, column)| Ok((PyString::new(py, field.name()).unbind(), Self::new(py, column)?)));
                Values::Struct(columns.collect::<PyResult<_>>()?)
            }
            DataType::Dictionary(_, _) => {
                let dictionary = array.as_any_dictionary();
                // What a null refers to is not looked at, and may lie anywhere.
                let keys = dictionary.keys();
                let keys = downcast_integer_array!(
                    keys => keys.iter().map(|key| key.map_or(0, |key| key as usize)).collect(),
                    _ => Vec::new()
                );
                Values::Indirect(keys, Box::new(Self::new(py, dictionary.values())?))
            }
            DataType::RunEndEncoded(ends, _) => match ends.data_type() {
                DataType::Int16 => runs::<Int16Type>(py, array)?,
                DataType::Int32 => runs::<Int32Type>(py, array)?,
                _ => runs::<Int64Type>(py, array)?,
            },
            DataType::Union(fields, _) => {
                let union = array.as_union();
                let ids: Vec<i8> = fields.iter().map(|(id, _)| id).collect();
                let column = |id| ids.iter().position(|other| *other == id).unwrap_or_default();
                let places = (0..union.len()).map(|at| (column(union.type_id(at)), union.value_offset(at)));
                let columns = ids.iter().map(|&id| Self::new(py, union.child(id)));
                Values::Union(places.collect(), columns.collect::<PyResult<_>>()?)
            }
            _ => Values::Scalar(array.clone()),
        };
        Ok(Self { nulls, values })
    }

    /// A value, which must be there.
    pub(crate) fn get<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyAny>> {
        let none = || Ok(py.None().into_bound(py));
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(at)) {
            return none();
        }
        match &self.values {
            Values::Null => none(),
            Values::Scalar(array) => scalar(py, array, at),
            Values::Time(array, unit) => time(py, number(array, at), *unit),
            Values::Timestamp(array, unit, zone) => timestamp(py, number(array, at), *unit, zone.as_ref()),
            Values::Duration(array, unit) => duration(py, number(array, at), *unit),
            Values::List(bounds, elements) => {
                let (start, len) = bounds[at];
                elements.list(py, start, len)
            }
            Values::FixedList(len, elements) => elements.list(py, at * len, *len),
            Values::Map(bounds, columns) => {
                let (start, len) = bounds[at];
                let list = PyList::empty(py);
                for at in start..start + len {
                    list.append((columns[0].get(py, at)?, columns[1].get(py, at)?))?;
                }
                Ok(list.into_any())
            }
            Values::Struct(columns) => {
                let dict = PyDict::new(py);
                for (name, column) in columns {
                    dict.set_item(name, column.get(py, at)?)?;
                }
                Ok(dict.into_any())
            }
            Values::Indirect(places, values) => values.get(py, places[at]),
            Values::Union(places, columns) => {
                let (column, at) = places[at];
                columns[column].get(py, at)
            }
        }
    }
}

fn runs<T: RunEndIndexType>(py: Python<'_>, array: &ArrayRef) -> PyResult<Values> {
    let runs = array.as_run::<T>();
    let places = (0..runs.len()).map(|at| runs.get_physical_index(at)).collect();
    Ok(Values::Indirect(places, Box::new(Column::new(py, runs.values())?)))
}

/// A time of any unit as it is stored.
fn number(array: &ArrayRef, at: usize) -> i64 {
    fn of<T: ArrowPrimitiveType>(array: &ArrayRef, at: usize) -> T::Native {
        array.as_primitive::<T>().value(at)
    }
    match array.data_type() {
        DataType::Time32(TimeUnit::Second) => of::<Time32SecondType>(array, at).into(),
        DataType::Time32(_) => of::<Time32MillisecondType>(array, at).into(),
        DataType::Time64(TimeUnit::Microsecond) => of::<Time64MicrosecondType>(array, at),
        DataType::Time64(_) => of::<Time64NanosecondType>(array, at),
        DataType::Timestamp(TimeUnit::Second, _) => of::<TimestampSecondType>(array, at),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of::<TimestampMillisecondType>(array, at),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of::<TimestampMicrosecondType>(array, at),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of::<TimestampNanosecondType>(array, at),
        DataType::Duration(TimeUnit::Second) => of::<DurationSecondType>(array, at),
        DataType::Duration(TimeUnit::Millisecond) => of::<DurationMillisecondType>(array, at),
        DataType::Duration(TimeUnit::Microsecond) => of::<DurationMicrosecondType>(array, at),
        _ => of::<DurationNanosecondType>(array, at),
    }
}

fn scalar<'py>(py: Python<'py>, array: &ArrayRef, at: usize) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! int {
        ($kind:ty) => {
            Ok(PyInt::new(py, array.as_primitive::<$kind>().value(at)).into_any())
        };
    }
    let float = |value: f64| Ok(PyFloat::new(py, value).into_any());
    let text = |value: &str| Ok(PyString::new(py, value).into_any());
    let bytes = |value: &[u8]| Ok(PyBytes::new(py, value).into_any());
    match array.data_type() {
        DataType::Boolean => Ok(PyBool::new(py, array.as_boolean().value(at)).to_owned().into_any()),
        DataType::Int8 => int!(Int8Type),
        DataType::Int16 => int!(Int16Type),
        DataType::Int32 => int!(Int32Type),
        DataType::Int64 => int!(Int64Type),
        DataType::UInt8 => int!(UInt8Type),
        DataType::UInt16 => int!(UInt16Type),
        DataType::UInt32 => int!(UInt32Type),
        DataType::UInt64 => int!(UInt64Type),
        DataType::Float16 => float(array.as_primitive::<Float16Type>().value(at).to_f64()),
        DataType::Float32 => float(array.as_primitive::<Float32Type>().value(at).into()),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(at)),
        DataType::Utf8 => text(array.as_string::<i32>().value(at)),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(at)),
        DataType::Utf8View => text(array.as_string_view().value(at)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(at)),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(at)),
        DataType::BinaryView => bytes(array.as_binary_view().value(at)),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(at)),
        DataType::Decimal32(_, scale) => decimal(py, array.as_primitive::<Decimal32Type>(), at, *scale),
        DataType::Decimal64(_, scale) => decimal(py, array.as_primitive::<Decimal64Type>(), at, *scale),
        DataType::Decimal128(_, scale) => decimal(py, array.as_primitive::<Decimal128Type>(), at, *scale),
        DataType::Decimal256(_, scale) => decimal(py, array.as_primitive::<Decimal256Type>(), at, *scale),
        DataType::Date32 => date(py, array.as_primitive::<Date32Type>().value(at).into()),
        DataType::Date64 => date(py, array.as_primitive::<Date64Type>().value(at).div_euclid(DAY_SECONDS * 1000)),
        DataType::Interval(unit) => {
            let parts = match unit {
                IntervalUnit::YearMonth => (array.as_primitive::<IntervalYearMonthType>().value(at), 0, 0),
                IntervalUnit::DayTime => {
                    let value = array.as_primitive::<IntervalDayTimeType>().value(at);
                    (0, value.days, i64::from(value.milliseconds) * 1_000_000)
                }
                IntervalUnit::MonthDayNano => {
                    let value = array.as_primitive::<IntervalMonthDayNanoType>().value(at);
                    (value.months, value.days, value.nanoseconds)
                }
            };
            Ok(parts.into_pyobject(py)?.into_any())
        }
        other => Err(PyNotImplementedError::new_err(format!("values of the type {other} cannot be given"))),
    }
}

fn decimal<'py, T>(py: Python<'py>, array: &PrimitiveArray<T>, at: usize, scale: i8) -> PyResult<Bound<'py, PyAny>>
where
    T: ArrowPrimitiveType,
    T::Native: std::fmt::Display,
{
    let text = format!("{}E{}", array.value(at), -i32::from(scale));
    helpers(py)?.decimal.bind(py).call1((text,))
}

/// What Python's type gives, or NumPy's where that has no such value.
fn or_numpy<'py>(
    py: Python<'py>,
    value: PyResult<Bound<'py, PyAny>>,
    other: &Py<PyAny>,
    number: i64,
    unit: &str,
) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Err(error) if error.is_instance_of::<PyOverflowError>(py) || error.is_instance_of::<PyValueError>(py) => {
            other.bind(py).call1((number, unit))
        }
        value => value,
    }
}

fn date(py: Python<'_>, days: i64) -> PyResult<Bound<'_, PyAny>> {
    let helpers = helpers(py)?;
    let made = helpers.from_ordinal.bind(py).call1((days.saturating_add(EPOCH_ORDINAL),));
    or_numpy(py, made, &helpers.datetime64, days, "D")
}

/// NumPy's name of a unit, and how many of it make a second.
fn unit_of(unit: TimeUnit) -> (&'static str, i64) {
    match unit {
        TimeUnit::Second => ("s", 1),
        TimeUnit::Millisecond => ("ms", 1_000),
        TimeUnit::Microsecond => ("us", 1_000_000),
        TimeUnit::Nanosecond => ("ns", 1_000_000_000),
    }
}

/// Whole seconds and the microseconds after them; `None` if there is more than that.
fn split(number: i64, per_second: i64) -> Option<(i64, i64)> {
    let (seconds, rest) = (number.div_euclid(per_second), number.rem_euclid(per_second));
    match per_second {
        1_000_000_000 => (rest % 1000 == 0).then_some((seconds, rest / 1000)),
        _ => Some((seconds, rest * (1_000_000 / per_second))),
    }
}

fn time(py: Python<'_>, number: i64, unit: TimeUnit) -> PyResult<Bound<'_, PyAny>> {
    let helpers = helpers(py)?;
    let (name, per_second) = unit_of(unit);
    match split(number, per_second) {
        Some((seconds, micros)) if (0..DAY_SECONDS).contains(&seconds) => {
            helpers.time.bind(py).call1((seconds / 3600, seconds / 60 % 60, seconds % 60, micros))
        }
        _ => helpers.timedelta64.bind(py).call1((number, name)),
    }
}

fn duration(py: Python<'_>, number: i64, unit: TimeUnit) -> PyResult<Bound<'_, PyAny>> {
    let helpers = helpers(py)?;
    let (name, per_second) = unit_of(unit);
    match split(number, per_second) {
        Some((seconds, micros)) => {
            let made = helpers.timedelta.bind(py).call1((0, seconds, micros));
            or_numpy(py, made, &helpers.timedelta64, number, name)
        }
        None => helpers.timedelta64.bind(py).call1((number, name)),
    }
}

fn timestamp<'py>(
    py: Python<'py>,
    number: i64,
    unit: TimeUnit,
    zone: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let helpers = helpers(py)?;
    let (name, per_second) = unit_of(unit);
    let Some((seconds, micros)) = split(number, per_second) else {
        return helpers.datetime64.bind(py).call1((number, name));
    };
    let made = helpers.timedelta.bind(py).call1((0, seconds, micros)).and_then(|since| {
        let then = helpers.epochs[usize::from(zone.is_some())].bind(py).add(since)?;
        match zone {
            Some(zone) => then.call_method1("astimezone", (zone,)),
            None => Ok(then),
        }
    });
    or_numpy(py, made, &helpers.datetime64, number, name)
}

/// A time zone by its name, or a difference such as `+01:00`.
fn time_zone(py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
    let helpers = helpers(py)?;
    if name.eq_ignore_ascii_case("utc") || name == "Z" {
        return helpers.timezone.bind(py).getattr("utc").map(Bound::unbind);
    }
    let fixed = || {
        let (sign, rest) = match name.split_at_checked(1)? {
            ("+", rest) => (1, rest),
            ("-", rest) => (-1, rest),
            _ => return None,
        };
        let digits: String = rest.chars().filter(|character| *character != ':').collect();
        let (hours, minutes) =
            (digits.get(..2)?.parse::<i64>().ok()?, digits.get(2..4).unwrap_or("0").parse::<i64>().ok()?);
        Some(sign * (hours * 60 + minutes))
    };
    let zone = match fixed() {
        Some(minutes) => {
            let difference = helpers.timedelta.bind(py).call1((0, minutes * 60))?;
            helpers.timezone.bind(py).call1((difference,))
        }
        None => helpers.zone_info.bind(py).call1((name,)),
    };
    zone.map(Bound::unbind).map_err(|error| {
        let message = format!("expected a time zone that this machine knows, found {name:?}: {error}");
        crate::errors::data(message)
    })
}

/// A row as Python's dict.
pub(crate) fn row<'py>(
    py: Python<'py>,
    names: &[Py<PyString>],
    columns: &[Column],
    at: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, column) in names.iter().zip(columns) {
        dict.set_item(name, column.get(py, at)?)?;
    }
    Ok(dict)
}

/// Booleans a byte each.
pub(crate) fn booleans(array: &dyn Array) -> Vec<u8> {
    array.as_boolean().values().iter().map(u8::from).collect()
}

/// NumPy's type of booleans.
pub(crate) fn bool_dtype(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    helpers(py)?.dtype.bind(py).call1(("?",))
}

/// An array with as many columns as lists have elements.
pub(crate) fn reshaped<'py>(array: &Bound<'py, PyAny>, rows: usize, width: usize) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(array.py(), [rows, width])?;
    array.call_method1("reshape", (shape,))
}
