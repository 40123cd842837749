//! Keywords of JSON Schemas that hold schemas.

/// Keywords that hold one schema.
pub(crate) const SINGLE_SCHEMA: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords that hold a list of schemas for different values.
pub(crate) const SCHEMA_LISTS: [&str; 2] = ["prefixItems", "items"];
/// Keywords that hold schemas for the same value. If several of them or `properties` occur
/// together, all apply at once. Closing one of them would then exclude the properties of the
/// others.
pub(crate) const SAME_VALUE_SCHEMAS: [&str; 3] = ["anyOf", "oneOf", "allOf"];
/// Keywords that hold schemas by name.
pub(crate) const NAMED_SCHEMAS: [&str; 4] =
    ["properties", "patternProperties", "$defs", "definitions"];
