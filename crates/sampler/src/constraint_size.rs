//! Size limit of constraints.

/// Maximum number of bytes of a constraint. The largest schemas in use have about half as many.
pub const MAX_CONSTRAINT_BYTES: usize = 256 << 10;
