//! Types that `create` can quantize a model to.

/// Types that need no importance matrix.
pub(crate) const QUANTIZE_TYPES: [&str; 20] = [
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4_MOE",
];

/// Types that need an importance matrix.
pub(crate) const IMATRIX_TYPES: [&str; 11] = [
    "Q2_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS",
    "IQ1_M", "IQ1_S",
];
