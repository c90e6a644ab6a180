//! Indices into empty dictionaries that stand for no value.
//!
//! Fields of a struct that is null have values all the same, which nobody looks at. Where such a field has a dictionary
//! writers put index 0, also if the dictionary is empty, and a reader that checks all indices refuses that. So an empty
//! dictionary is read as one that has a null, and afterwards nothing that is to be seen may point there.

use std::ops::Range;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayData, ArrayRef, BooleanBufferBuilder, OffsetSizeTrait, make_array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

/// What is read in the place of an empty dictionary: index 0, and no other one, is a place there.
pub(super) fn in_place_of(dictionary: &dyn Array) -> Option<ArrayRef> {
    dictionary.is_empty().then(|| new_null_array(dictionary.data_type(), 1))
}

/// Whether a value of a column, other than those that `seen` says are null, is one of an empty dictionary: of `empty`, what
/// was read in the place of such.
pub(super) fn has_value_of(column: &dyn Array, seen: Option<&NullBuffer>, empty: &[ArrayData]) -> bool {
    let seen = NullBuffer::union(seen, column.nulls());
    let seen = seen.as_ref();
    let within = |values: &dyn Array, ranges: &dyn Fn(usize) -> Range<usize>| {
        let mut places = BooleanBufferBuilder::new(values.len());
        places.append_n(values.len(), false);
        for row in (0..column.len()).filter(|&row| seen.is_none_or(|seen| seen.is_valid(row))) {
            ranges(row).for_each(|at| places.set_bit(at, true));
        }
        has_value_of(values, Some(&NullBuffer::new(places.finish())), empty)
    };
    match column.data_type() {
        DataType::Dictionary(_, _) => {
            let values = column.as_any_dictionary().values().to_data();
            // Those of nulls have no memory to be told apart by, and nothing but nulls.
            let is_empty = *values.data_type() != DataType::Null && empty.iter().any(|other| values.ptr_eq(other));
            is_empty && seen.map_or(0, NullBuffer::null_count) < column.len()
        }
        DataType::Struct(_) => column.as_struct().columns().iter().any(|field| has_value_of(field, seen, empty)),
        DataType::List(_) => within(column.as_list::<i32>().values(), &range_of(column.as_list::<i32>().offsets())),
        DataType::LargeList(_) => {
            within(column.as_list::<i64>().values(), &range_of(column.as_list::<i64>().offsets()))
        }
        DataType::Map(_, _) => within(column.as_map().entries(), &range_of(column.as_map().offsets())),
        DataType::FixedSizeList(_, _) => {
            let list = column.as_fixed_size_list();
            within(list.values(), &|row| list.value_offset_at(row)..list.value_offset_at(row + 1))
        }
        // Whatever lies in other kinds, such as unions, counts as seen.
        _ => column.to_data().child_data().iter().any(|child| has_value_of(&make_array(child.clone()), None, empty)),
    }
}

fn range_of<O: OffsetSizeTrait>(offsets: &[O]) -> impl Fn(usize) -> Range<usize> {
    |row| offsets[row].as_usize()..offsets[row + 1].as_usize()
}
