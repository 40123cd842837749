//! The GGUF file format: parse, validate, map, split files, write, and the translating `View`.
