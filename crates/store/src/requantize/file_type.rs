//! File types by name.

use puna_quant::TensorType::{self, *};

use crate::gguf_info::file_type_name;

/// A file type such as `Q4_K_M`: the mix of tensor types in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType {
    id: u32,
    base: TensorType,
}

/// Number in `general.file_type`, and the type of most tensors.
const TYPES: [(u32, TensorType); 35] = [
    (0, F32),
    (1, F16),
    (2, Q4_0),
    (3, Q4_1),
    (7, Q8_0),
    (8, Q5_0),
    (9, Q5_1),
    (10, Q2_K),
    (11, Q3_K),
    (12, Q3_K),
    (13, Q3_K),
    (14, Q4_K),
    (15, Q4_K),
    (16, Q5_K),
    (17, Q5_K),
    (18, Q6_K),
    (19, IQ2_XXS),
    (20, IQ2_XS),
    (21, Q2_K),
    (22, IQ3_S),
    (23, IQ3_XXS),
    (24, IQ1_S),
    (25, IQ4_NL),
    (26, IQ3_S),
    (27, IQ3_S),
    (28, IQ2_XS),
    (29, IQ2_S),
    (30, IQ4_XS),
    (31, IQ1_M),
    (32, BF16),
    (36, TQ1_0),
    (37, TQ2_0),
    (38, MXFP4),
    (40, Q1_0),
    (41, Q2_0),
];

impl FileType {
    /// A file type by its name in any case. `Q4_K` and the like mean the `_M` variant, `MXFP4`
    /// means `MXFP4_MOE`.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = match name.as_str() {
            "Q3_K" | "Q4_K" | "Q5_K" => format!("{name}_M"),
            "MXFP4" => format!("{name}_MOE"),
            _ => name,
        };
        let found = TYPES.iter().find(|(id, _)| file_type_name(*id) == name);
        found.map(|&(id, base)| Self { id, base })
    }

    /// Names of all file types.
    pub fn names() -> Vec<&'static str> {
        TYPES.iter().map(|(id, _)| file_type_name(*id)).collect()
    }

    /// The number in `general.file_type`.
    pub fn id(self) -> u32 {
        self.id
    }

    /// The name.
    pub fn name(self) -> &'static str {
        file_type_name(self.id)
    }

    /// The type of most tensors.
    pub fn base(self) -> TensorType {
        self.base
    }
}
