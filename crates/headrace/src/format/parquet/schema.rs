//! Which leaves of a schema are token columns, by what name a user selects them, and what the others are.

use ::parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use ::parquet::schema::types::Type;

use super::TokenShape;

/// A leaf of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    /// The name that a user selects it by: the path of the list for a list's elements, else the leaf's own path.
    pub(super) name: String,
    /// Its type, for messages.
    pub(super) kind: String,
    /// How its tokens are read, if it is a token column.
    pub(super) shape: Option<TokenShape>,
}

/// The leaves of a schema, in the order of the column chunks.
pub(super) fn leaves(root: &Type) -> Vec<Leaf> {
    let mut found = Vec::new();
    if let Type::GroupType { fields, .. } = root {
        for field in fields {
            walk(field, "", At::default(), &mut found);
        }
    }
    found
}

/// The schema's fields with their types, for messages.
pub(super) fn fields(root: &Type) -> Vec<(String, String)> {
    match root {
        Type::GroupType { fields, .. } => {
            fields.iter().map(|field| (field.name().to_owned(), describe(field))).collect()
        }
        Type::PrimitiveType { .. } => Vec::new(),
    }
}

/// What lies above a node.
#[derive(Debug, Clone, Copy, Default)]
struct At {
    /// Definition level.
    def: i16,
    /// Repetition level.
    rep: i16,
}

impl At {
    /// The levels at `node`.
    fn below(self, node: &Type) -> Self {
        match repetition(node) {
            Repetition::REQUIRED => self,
            Repetition::OPTIONAL => Self { def: self.def.saturating_add(1), ..self },
            Repetition::REPEATED => Self { def: self.def.saturating_add(1), rep: self.rep.saturating_add(1) },
        }
    }
}

fn walk(node: &Type, parent: &str, above: At, found: &mut Vec<Leaf>) {
    let name = if parent.is_empty() { node.name().to_owned() } else { format!("{parent}.{}", node.name()) };
    let at = above.below(node);
    if let Some((repeated, element)) = list_of(node) {
        // One column: the elements of the list.
        let list = if std::ptr::eq(repeated, node) { at } else { at.below(repeated) };
        let last = if std::ptr::eq(repeated, element) { list } else { list.below(element) };
        let shape = integer(element).filter(|_| last.rep == 1).map(|(value_bytes, bits, signed)| TokenShape {
            value_bytes,
            bits,
            signed,
            max_def: last.def,
            list_def: list.def,
        });
        found.push(Leaf { name, kind: describe(node), shape });
        return;
    }
    match node {
        Type::PrimitiveType { .. } => found.push(Leaf { name, kind: describe(node), shape: None }),
        Type::GroupType { fields, .. } => fields.iter().for_each(|field| walk(field, &name, at, found)),
    }
}

/// The repeated node of a list and its element, if `node` is a list whose elements are leaves.
///
/// Lists come in three forms: three levels deep as the format asks for, a repeated leaf in a group that is marked as
/// a list, and a bare repeated leaf.
fn list_of(node: &Type) -> Option<(&Type, &Type)> {
    match node {
        Type::PrimitiveType { .. } => (repetition(node) == Repetition::REPEATED).then_some((node, node)),
        Type::GroupType { fields, .. } => {
            let [repeated] = fields.as_slice() else { return None };
            if !is_list(node) || repetition(node) == Repetition::REPEATED {
                return None;
            }
            if repetition(repeated) != Repetition::REPEATED {
                return None;
            }
            match repeated.as_ref() {
                Type::PrimitiveType { .. } => Some((repeated, repeated)),
                Type::GroupType { fields, .. } => {
                    let [element] = fields.as_slice() else { return None };
                    // By the format's rules for old files, such a group is the element itself: a struct.
                    let is_struct = repeated.name() == "array" || repeated.name() == format!("{}_tuple", node.name());
                    let leaf = element.is_primitive() && repetition(element) != Repetition::REPEATED;
                    (leaf && !is_struct).then_some((repeated.as_ref(), element.as_ref()))
                }
            }
        }
    }
}

fn is_list(node: &Type) -> bool {
    let info = node.get_basic_info();
    match info.logical_type_ref() {
        Some(logical) => *logical == LogicalType::List,
        None => info.converted_type() == ConvertedType::LIST,
    }
}

/// A node's repetition; a node that has none (the root) is there once.
fn repetition(node: &Type) -> Repetition {
    let info = node.get_basic_info();
    if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED }
}

/// Bytes, bits and sign of a leaf of integers.
fn integer(leaf: &Type) -> Option<(u8, u8, bool)> {
    let Type::PrimitiveType { physical_type, basic_info, .. } = leaf else { return None };
    let bytes: u8 = match physical_type {
        Physical::INT32 => 4,
        Physical::INT64 => 8,
        _ => return None,
    };
    let (bits, signed) = match (basic_info.logical_type_ref(), basic_info.converted_type()) {
        (Some(LogicalType::Integer(int)), _) => (u8::try_from(int.bit_width).ok()?, int.is_signed),
        (Some(_), _) => return None,
        (None, ConvertedType::NONE) => (bytes * 8, true),
        (None, ConvertedType::INT_8) => (8, true),
        (None, ConvertedType::INT_16) => (16, true),
        (None, ConvertedType::INT_32) => (32, true),
        (None, ConvertedType::INT_64) => (64, true),
        (None, ConvertedType::UINT_8) => (8, false),
        (None, ConvertedType::UINT_16) => (16, false),
        (None, ConvertedType::UINT_32) => (32, false),
        (None, ConvertedType::UINT_64) => (64, false),
        _ => return None,
    };
    (matches!(bits, 8 | 16 | 32 | 64) && bits <= bytes * 8).then_some((bytes, bits, signed))
}

/// A node's type in a few words.
fn describe(node: &Type) -> String {
    if let Some((_, element)) = list_of(node) {
        return format!("list of {}", describe_leaf(element));
    }
    match node {
        Type::PrimitiveType { .. } => describe_leaf(node),
        Type::GroupType { fields, .. } => {
            let info = node.get_basic_info();
            let map = matches!(info.logical_type_ref(), Some(LogicalType::Map))
                || matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE);
            let inner = match fields.as_slice() {
                [repeated] if is_list(node) => match repeated.as_ref() {
                    Type::GroupType { fields, .. } if fields.len() == 1 => fields.first(),
                    _ => None,
                },
                _ => None,
            };
            match inner {
                _ if map => "map".to_owned(),
                Some(inner) => format!("list of {}", describe(inner)),
                None if is_list(node) => "list of struct".to_owned(),
                None if repetition(node) == Repetition::REPEATED => "list of struct".to_owned(),
                None => "struct".to_owned(),
            }
        }
    }
}

fn describe_leaf(leaf: &Type) -> String {
    if let Some((_, bits, signed)) = integer(leaf) {
        return format!("{}int{bits}", if signed { "" } else { "u" });
    }
    let Type::PrimitiveType { physical_type, basic_info, .. } = leaf else { return "struct".to_owned() };
    let logical = match (basic_info.logical_type_ref(), basic_info.converted_type()) {
        (Some(LogicalType::String), _) | (None, ConvertedType::UTF8) => "string",
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => "date",
        (Some(LogicalType::Decimal(_)), _) | (None, ConvertedType::DECIMAL) => "decimal",
        (Some(LogicalType::Timestamp(_)), _)
        | (None, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS) => "timestamp",
        (Some(LogicalType::Time(_)), _) | (None, ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => "time",
        (Some(LogicalType::Json), _) | (None, ConvertedType::JSON) => "json",
        (Some(LogicalType::Uuid), _) => "uuid",
        (Some(LogicalType::Float16), _) => "float16",
        (Some(LogicalType::Unknown), _) => "null",
        _ => match physical_type {
            Physical::BOOLEAN => "bool",
            Physical::INT32 => "int32",
            Physical::INT64 => "int64",
            Physical::INT96 => "timestamp",
            Physical::FLOAT => "float",
            Physical::DOUBLE => "double",
            Physical::BYTE_ARRAY => "binary",
            Physical::FIXED_LEN_BYTE_ARRAY => "fixed binary",
        },
    };
    logical.to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use ::parquet::schema::parser::parse_message_type;

    use super::*;

    /// Bytes, bits, sign, and the two levels of a shape.
    type Shape = Option<(u8, u8, bool, i16, i16)>;

    fn found(message: &str) -> Vec<(String, String, Shape)> {
        let root = parse_message_type(message).unwrap();
        let shape = |s: TokenShape| (s.value_bytes, s.bits, s.signed, s.max_def, s.list_def);
        leaves(&root).into_iter().map(|leaf| (leaf.name, leaf.kind, leaf.shape.map(shape))).collect()
    }

    #[track_caller]
    fn one(message: &str, name: &str, kind: &str, shape: Shape) {
        let message = format!("message m {{ {message} }}");
        assert_eq!(found(&message), [(name.to_owned(), kind.to_owned(), shape)], "{message}");
    }

    #[test]
    fn lists_of_each_form() {
        one(
            "optional group tokens (LIST) { repeated group list { optional int32 element; } }",
            "tokens",
            "list of int32",
            Some((4, 32, true, 3, 2)),
        );
        one(
            "required group tokens (LIST) { repeated group bag { required int64 array_element (INTEGER(64,false)); } }",
            "tokens",
            "list of uint64",
            Some((8, 64, false, 1, 1)),
        );
        one(
            "optional group t (LIST) { repeated int32 array (UINT_16); }",
            "t",
            "list of uint16",
            Some((4, 16, false, 2, 2)),
        );
        one("repeated int32 t (INT_8);", "t", "list of int8", Some((4, 8, true, 1, 1)));
        one(
            "optional group a { required group b (LIST) { repeated group list { required int32 element; } } }",
            "a.b",
            "list of int32",
            Some((4, 32, true, 2, 2)),
        );
        one("optional group a { repeated int64 b; }", "a.b", "list of int64", Some((8, 64, true, 2, 2)));
    }

    #[test]
    fn what_is_no_token_column() {
        one("required int64 id;", "id", "int64", None);
        one("optional binary text (STRING);", "text", "string", None);
        one(
            "optional group d (LIST) { repeated group list { optional int32 element (DATE); } }",
            "d",
            "list of date",
            None,
        );
        one("optional group f (LIST) { repeated group list { optional float element; } }", "f", "list of float", None);
        one("optional group s (LIST) { repeated group array { required int32 x; } }", "s.array.x", "int32", None);
        one("repeated group s { required int32 x; }", "s.x", "int32", None);
        let nested = "optional group n (LIST) { repeated group list { optional group element (LIST) {
            repeated group list { optional int32 element; } } } }";
        one(nested, "n.list.element", "list of int32", None);
        let map = "message m { optional group m (MAP) { repeated group key_value { required int32 key;
            optional int32 value; } } }";
        assert!(found(map).iter().all(|leaf| leaf.2.is_none()));
        let root = parse_message_type(map).unwrap();
        assert_eq!(fields(&root), [("m".to_owned(), "map".to_owned())]);
    }
}
