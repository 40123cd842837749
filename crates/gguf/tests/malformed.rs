//! Checks that every malformed input of the format's description is rejected with its code. The
//! tests have the numbers of that list. 41 to 55 concern requirements of architectures and
//! tokenizers.

use crate::common::{RawFile, minimal};
use puna_gguf::{Gguf, GgufError};

/// Offsets of the fields of the minimal file.
mod at {
    pub const VERSION: usize = 4;
    pub const TENSOR_COUNT: usize = 8;
    pub const KV_COUNT: usize = 16;
    pub const KEY0_LEN: usize = 24;
    pub const KEY0: usize = 32;
    pub const TYPE0: usize = 52;
    pub const VALUE0: usize = 56;
    pub const TYPE1: usize = 94;
    pub const VALUE1: usize = 98;
    pub const KEY2: usize = 102;
    pub const TYPE2: usize = 116;
    pub const ELEMENT2: usize = 120;
    pub const COUNT2: usize = 124;
    pub const NAME0: usize = 152;
    pub const DIMS0: usize = 153;
    pub const NE0: usize = 157;
    pub const TTYPE0: usize = 173;
    pub const NAME1: usize = 193;
    pub const NE1: usize = 198;
    pub const OFFSET1: usize = 210;
    pub const METADATA_END: usize = 218;
    pub const DATA: usize = 224;
    /// End of tensor `b` before its padding.
    pub const END: usize = 274;
}

/// The minimal file with replaced bytes.
fn patched(patches: &[(usize, &[u8])]) -> Vec<u8> {
    let mut file = minimal();
    for (at, bytes) in patches {
        file[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    file
}

fn open(file: Vec<u8>) -> Result<Gguf, GgufError> {
    Gguf::from_bytes(file)
}

/// Checks the code of a file's error, and that its message contains `names`.
#[track_caller]
fn refused(file: Vec<u8>, code: &str, names: &str) {
    match open(file) {
        Ok(_) => panic!("accepted, wanted {code}"),
        Err(e) => {
            assert_eq!(e.code(), code, "{e}");
            assert!(e.to_string().contains(names), "{e:?} does not name {names}: {e}");
        }
    }
}

#[track_caller]
fn patch_refused(at: usize, bytes: &[u8], code: &str, names: &str) {
    refused(patched(&[(at, bytes)]), code, names);
}

#[test]
fn n1_n7_truncated_headers_are_refused() {
    refused(vec![], "gguf_truncated_header", "byte 0");
    refused(b"GGU".to_vec(), "gguf_truncated_header", "byte 3");
    for len in 4..24 {
        refused(minimal()[..len].to_vec(), "gguf_truncated_header", "header");
    }
}

#[test]
fn n2_other_file_formats_are_named() {
    for (start, seems) in [
        (&b"lmgg\x01\0\0\0"[..], "before GGUF"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
        (b"ggjt\x03\0\0\0", "before GGUF"),
        (b"FUGG\0\0\0\x03", "swapped"),
        (b"\x40\x01\0\0\0\0\0\0{\"a\":{\"dtype\"", "safetensors"),
        (b"PK\x03\x04\x14\0\0\0", "ZIP"),
        (b"\x1f\x8b\x08\0\0\0", "gzip"),
        (b"\x28\xb5\x2f\xfd\0\0", "Zstandard"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"<html><head>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b"{\"error\": \"x\"}", "JSON"),
        (b"\x1b[2J and text", "`\\u{1b}[2J`"),
    ] {
        refused(start.to_vec(), "gguf_bad_magic", seems);
    }
}

#[test]
fn n3_n6_unsupported_versions_are_refused() {
    patch_refused(at::VERSION, &[0, 0, 0, 0], "gguf_version_invalid", "version 0");
    patch_refused(at::VERSION, &[1, 0, 0, 0], "gguf_version_unsupported", "version 1");
    patch_refused(at::VERSION, &[4, 0, 0, 0], "gguf_version_future", "version 4");
    patch_refused(at::VERSION, &[0xff; 4], "gguf_version_future", "4294967295");
    patch_refused(at::VERSION, &[0, 0, 0, 3], "gguf_big_endian", "gguf_convert_endian.py");
    patch_refused(at::VERSION, &[0, 0, 0, 1], "gguf_big_endian", "big-endian");
    assert_eq!(open(patched(&[(at::VERSION, &[2, 0, 0, 0])])).unwrap().version(), 2);
}

#[test]
fn n8_n9_invalid_counts_are_refused() {
    for count in [-1, 1 << 40, i64::MIN, 12] {
        let found = count.to_string();
        patch_refused(at::TENSOR_COUNT, &count.to_le_bytes(), "gguf_tensor_count_invalid", &found);
    }
    for count in [-1, 1 << 40, i64::MIN, 21] {
        patch_refused(
            at::KV_COUNT,
            &count.to_le_bytes(),
            "gguf_kv_count_invalid",
            &count.to_string(),
        );
    }
    // As many as the bytes allow. Parsing then fails on other errors.
    assert!(open(patched(&[(at::TENSOR_COUNT, &11i64.to_le_bytes())])).is_err());
    assert!(open(patched(&[(at::KV_COUNT, &20i64.to_le_bytes())])).is_err());
    let mut many = RawFile::new(0, 65_537).into_bytes();
    many.resize(24 + 65_537 * 13, 0);
    refused(many, "gguf_kv_count_invalid", "0 to 65536");
    let mut many = RawFile::new((1 << 20) + 1, 0).into_bytes();
    many.resize(24 + ((1 << 20) + 1) * 24, 0);
    refused(many, "gguf_tensor_count_invalid", "0 to 1048576");
}

#[test]
fn n10_n12_invalid_keys_are_refused() {
    for len in [1u64 << 63, 288, u64::MAX, 257] {
        patch_refused(at::KEY0_LEN, &len.to_le_bytes(), "gguf_string_out_of_file", "key 0");
    }
    let mut long = RawFile::new(0, 1);
    long.string(&[b'k'; 65_536]);
    refused(
        long.kv_value(4, &[0; 4]).into_bytes(),
        "gguf_string_out_of_file",
        "65536 bytes long, 65535",
    );
    refused(
        RawFile::new(0, 1).kv(b"", 4, &[0; 4]).into_bytes(),
        "gguf_key_empty",
        "key 0 at byte 24",
    );
    refused(RawFile::new(0, 1).kv(b"a\0b", 4, &[0; 4]).into_bytes(), "gguf_key_invalid", "`a\\0b`");
    refused(RawFile::new(0, 1).kv(b"a\xff", 4, &[0; 4]).into_bytes(), "gguf_key_invalid", "UTF-8");
    patch_refused(at::KEY0, b"\0", "gguf_key_invalid", "NUL");
}

#[test]
fn n13_duplicate_keys_are_refused() {
    let file = RawFile::new(0, 2).kv(b"x.list", 4, &[0; 4]).kv(b"x.list", 4, &[0; 4]).into_bytes();
    refused(file, "gguf_key_duplicate", "x.list");
    let mut file = RawFile::new(0, 3);
    for key in ["general.alignment", "x", "general.alignment"] {
        file = file.kv(key.as_bytes(), 4, &32u32.to_le_bytes());
    }
    refused(file.into_bytes(), "gguf_key_duplicate", "general.alignment");
}

#[test]
fn n14_n16_invalid_value_types_are_refused() {
    for id in [13i32, -1, i32::MIN, 255] {
        patch_refused(
            at::TYPE0,
            &id.to_le_bytes(),
            "gguf_value_type_unknown",
            "`general.architecture`: value type",
        );
        patch_refused(
            at::ELEMENT2,
            &id.to_le_bytes(),
            "gguf_value_type_unknown",
            &format!("x.list`: value type {id}"),
        );
    }
    patch_refused(at::ELEMENT2, &[9, 0, 0, 0], "gguf_array_nested", "x.list");
}

#[test]
fn n17_n18_invalid_arrays_are_refused() {
    for count in [1u64 << 61, 1000, u64::MAX, 1 << 63] {
        patch_refused(at::COUNT2, &count.to_le_bytes(), "gguf_array_out_of_file", "x.list");
    }
    // Bytes of three integers, read as string lengths.
    patch_refused(
        at::ELEMENT2,
        &[8, 0, 0, 0],
        "gguf_string_out_of_file",
        "string 0 of key `x.list`",
    );
    let strings = [(at::ELEMENT2, &[8u8, 0, 0, 0][..]), (at::COUNT2, &[200, 0, 0, 0, 0, 0, 0, 0])];
    refused(patched(&strings), "gguf_string_out_of_file", "x.list");
    // More elements than the limit, although the bytes exist.
    let mut file = RawFile::new(0, 1).kv(b"big", 9, &[0, 0, 0, 0]);
    file.u64((64 << 20) + 1);
    let mut file = file.into_bytes();
    file.resize(file.len() + (64 << 20) + 1, 0);
    refused(file, "gguf_array_out_of_file", "67108864 are possible");
}

#[test]
fn n18_overlong_strings_are_refused_but_templates_may_be_long() {
    let file = |key: &[u8], len: usize| {
        let mut value = (len as u64).to_le_bytes().to_vec();
        value.resize(8 + len, b'x');
        RawFile::new(0, 1).kv(key, 8, &value).into_bytes()
    };
    assert!(open(file(b"a", 16 << 20)).is_ok());
    refused(file(b"a", (16 << 20) + 1), "gguf_string_out_of_file", "the value of key `a`");
    assert!(open(file(b"tokenizer.chat_template", 64 << 20)).is_ok());
    refused(
        file(b"tokenizer.huggingface.json", (64 << 20) + 1),
        "gguf_string_out_of_file",
        "huggingface",
    );
}

#[test]
fn n19_truncated_values_are_refused() {
    let values: [(u32, &[u8]); 7] = [
        (0, &[]),
        (2, &[1]),
        (4, &[1, 2, 3]),
        (7, &[]),
        (10, &[0; 7]),
        (12, &[0; 7]),
        (8, &[0; 7]),
    ];
    for (ty, bytes) in values {
        // Bytes of a second key, so that the count is possible.
        refused(
            RawFile::new(0, 1).kv(b"key", ty, bytes).into_bytes(),
            "gguf_truncated_kv",
            "`key`",
        );
    }
    refused(
        RawFile::new(0, 1).kv(b"key", 9, &[4, 0, 0, 0, 1]).into_bytes(),
        "gguf_truncated_kv",
        "length of array `key`",
    );
    refused(RawFile::new(0, 1).kv(b"key", 9, &[4, 0]).into_bytes(), "gguf_truncated_kv", "`key`");
    let mut file = RawFile::new(0, 1);
    file.string(b"long enough");
    refused(file.into_bytes(), "gguf_truncated_kv", "type of key `long enough`");
}

#[test]
fn n20_n21_invalid_alignments_are_refused() {
    patch_refused(at::TYPE1, &[5, 0, 0, 0], "gguf_alignment_type", "i32 32");
    for value in [0u32, 13, 1 << 31, 1 << 17] {
        patch_refused(
            at::VALUE1,
            &value.to_le_bytes(),
            "gguf_alignment_invalid",
            &value.to_string(),
        );
    }
}

#[test]
fn n22_n24_invalid_tensor_names_are_refused() {
    let named = |name: &[u8]| RawFile::new(1, 0).tensor(name, &[1], 0, 0).data(4);
    assert!(open(named(&[b'n'; 63])).is_ok());
    refused(named(&[b'n'; 64]), "gguf_tensor_name_too_long", "64 bytes");
    refused(named(b""), "gguf_tensor_name_invalid", "is empty");
    refused(named(b"a\0"), "gguf_tensor_name_invalid", "control");
    refused(named(b"a\n"), "gguf_tensor_name_invalid", "control");
    refused(named(b"a\xc3"), "gguf_tensor_name_invalid", "UTF-8");
    patch_refused(at::NAME0, b"\x7f", "gguf_tensor_name_invalid", "tensor 0");
    patch_refused(at::NAME1, b"a", "gguf_tensor_duplicate", "`a`");
}

#[test]
fn n25_n28_invalid_shapes_are_refused() {
    patch_refused(at::DIMS0, &[5, 0, 0, 0], "gguf_tensor_dims_invalid", "`a` has 5");
    patch_refused(at::DIMS0, &[0xff; 4], "gguf_tensor_dims_invalid", "4294967295");
    patch_refused(at::NE0, &(-1i64).to_le_bytes(), "gguf_tensor_dim_negative", "dimension 0 is -1");
    patch_refused(at::NE0, &i64::MIN.to_le_bytes(), "gguf_tensor_dim_negative", "`a`");
    patch_refused(at::NE0 + 8, &[0; 8], "gguf_tensor_dim_zero", "dimension 1");
    let huge = [(1u64 << 40).to_le_bytes(), (1u64 << 40).to_le_bytes()].concat();
    patch_refused(at::NE0, &huge, "gguf_tensor_shape_overflow", "`a`");
}

#[test]
fn n29_n31_invalid_tensor_types_are_refused() {
    for id in [43i32, -1, 1000] {
        patch_refused(
            at::TTYPE0,
            &id.to_le_bytes(),
            "gguf_tensor_type_unknown",
            &format!("type {id}"),
        );
    }
    for (id, was) in [
        (4u32, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (38, ""),
    ] {
        patch_refused(at::TTYPE0, &id.to_le_bytes(), "gguf_tensor_type_removed", was);
    }
    patch_refused(at::NE1, &33u64.to_le_bytes(), "gguf_tensor_row_misaligned", "33");
}

#[test]
fn n32_n33_overflowing_sizes_are_refused() {
    let file = |shape: &[u64], ty| RawFile::new(1, 0).tensor(b"t", shape, ty, 0).data(64);
    // 2^62 elements of 8 bytes.
    refused(file(&[1 << 62], 28), "gguf_tensor_size_overflow", "F64");
    // 2^64 - 16 bytes: the padding overflows.
    refused(file(&[4, (1 << 30) - 1, (1 << 30) + 1, 1], 0), "gguf_tensor_size_overflow", "`t`");
}

#[test]
fn n34_n36_invalid_offsets_are_refused() {
    patch_refused(at::OFFSET1, &33u64.to_le_bytes(), "gguf_tensor_offset_unaligned", "33");
    patch_refused(at::OFFSET1, &64u64.to_le_bytes(), "gguf_tensor_offset_unexpected", "end at 32");
    patch_refused(
        at::OFFSET1,
        &(u64::MAX - 31).to_le_bytes(),
        "gguf_tensor_offset_unexpected",
        "`b`",
    );
    patch_refused(at::OFFSET1, &0u64.to_le_bytes(), "gguf_tensor_overlap", "`b`");
    let wrong_order =
        RawFile::new(2, 0).tensor(b"a", &[1], 0, 32).tensor(b"b", &[1], 0, 0).data(64);
    refused(wrong_order, "gguf_tensor_offset_unexpected", "`a`");
}

#[test]
fn n37_n38_files_truncated_at_any_length_are_refused() {
    let whole = minimal();
    for len in 0..whole.len() {
        match open(whole[..len].to_vec()) {
            Ok(_) => assert!(len >= at::END, "accepted when cut at {len}"),
            Err(e) => {
                assert!(len < at::END, "refused when cut at {len}: {e}");
                match len {
                    at::METADATA_END..at::DATA => assert_eq!(e.code(), "gguf_truncated_data"),
                    at::DATA..at::END => assert_eq!(e.code(), "gguf_tensor_out_of_file"),
                    _ => {}
                }
            }
        }
    }
    let first = |len: usize| open(whole[..len].to_vec()).unwrap_err().to_string();
    assert!(first(at::DATA + 31).contains("`a` ends at byte 256"));
    assert!(first(at::END - 1).contains("`b` ends at byte 274, but the file has 273"));
    // A truncated tensor description, with counts that are small enough for the bytes.
    let cut = RawFile::new(1, 0).tensor(b"a name that is long enough", &[1], 0, 0).into_bytes();
    refused(cut[..cut.len() - 1].to_vec(), "gguf_truncated_tensor_info", "tensor 0");
}

#[test]
fn n39_an_overflowing_sum_of_sizes_is_refused() {
    // 2^64 - 128 bytes in total, which overflow only together with the 128 bytes before them.
    let half = 0x7FFF_FFFF_FFFF_FFC0u64;
    let two = RawFile::new(2, 1).kv(b"a key", 4, &[0; 4]);
    let two = two.tensor(b"a", &[half], 24, 0).tensor(b"b", &[half], 24, half).data(64);
    refused(two, "gguf_data_size_overflow", "`b`");
    let words = 1 << 62;
    let two = RawFile::new(2, 0)
        .tensor(b"a", &[words], 25, 0)
        .tensor(b"b", &[words], 25, 2 * words)
        .data(64);
    refused(two, "gguf_data_size_overflow", "`b`");
}

#[test]
fn n41_a_missing_or_invalid_architecture_is_an_error() {
    let none = open(RawFile::new(0, 0).into_bytes()).unwrap();
    assert_eq!(none.metadata().architecture().unwrap_err().code(), "gguf_architecture_missing");
    let number =
        open(RawFile::new(0, 1).kv(b"general.architecture", 4, &[1, 0, 0, 0]).into_bytes())
            .unwrap();
    let e = number.metadata().architecture().unwrap_err();
    assert_eq!(
        (e.code(), &*e.to_string()),
        ("gguf_architecture_type", "key `general.architecture` must be a string, found u32 1")
    );
}

#[test]
fn n54_non_finite_weights_are_found_on_request() {
    let good = open(minimal()).unwrap();
    good.tensors().iter().for_each(|tensor| good.check_data(tensor).unwrap());
    let bad =
        open(patched(&[(at::DATA + 8, &f32::NAN.to_le_bytes()), (at::DATA + 32, &[0, 0x7c])]))
            .unwrap();
    for tensor in bad.tensors() {
        let e = bad.check_data(tensor).unwrap_err();
        assert_eq!(e.code(), "gguf_tensor_data_invalid");
        assert!(e.to_string().contains(&*tensor.name), "{e}");
    }
}

#[test]
fn unusual_files_are_accepted() {
    // An empty array, a boolean of 2, a tensor without dimensions, a string of arbitrary bytes.
    let file = RawFile::new(1, 3)
        .kv(b"empty", 9, &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .kv(b"yes", 7, &[2])
        .kv(b"bytes", 8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0])
        .tensor(b"value", &[], 0, 0)
        .data(4);
    let gguf = open(file).unwrap();
    assert_eq!(gguf.metadata().strings("empty").unwrap().unwrap().count(), 0);
    assert_eq!(gguf.metadata().bool("yes"), Ok(true));
    assert_eq!(gguf.metadata().get("bytes").unwrap().as_bytes(), Some(&[0xff, 0][..]));
    assert_eq!(gguf.metadata().str("bytes").unwrap_err().code(), "gguf_key_type");
    assert_eq!((gguf.tensors()[0].size, gguf.tensors()[0].elements()), (4, 1));
    // No tensors and no padding.
    assert!(open(RawFile::new(0, 1).kv(b"yes", 7, &[1]).into_bytes()).is_ok());
}

#[test]
fn offsets_in_the_minimal_file_are_correct() {
    let file = minimal();
    assert_eq!(&file[at::KEY0..at::TYPE0], b"general.architecture");
    assert_eq!(&file[at::VALUE0 + 8..at::VALUE0 + 13], b"llama");
    assert_eq!(&file[at::KEY2 + 8..at::TYPE2], b"x.list");
    assert_eq!((file[at::NAME0], file[at::NAME1]), (b'a', b'b'));
}
