//! Every recorded picture gives its pixels or its error.
//!
//! `tests/data/images/cases.json` is the contract for all formats. The cases below `more/` are
//! variants that `make_pictures.py` made with Pillow.

use std::collections::BTreeSet;
use std::fs;

use puna_media::{PictureLimits, decode_picture, picture_size};
use serde::Deserialize;

use crate::common::{image_path, read_image, sha256};

/// Folders of cases and the number of their pictures. Another number means that a case was lost.
const FOLDERS: [(&str, usize); 2] = [("", 46), ("more/", 35)];
/// Files beside the cases.
const OTHER_FILES: [&str; 5] =
    ["README.md", "cases.json", "model-pixels.json", "resize.json", "more/cases.json"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub file: String,
    bytes: usize,
    width: Option<u32>,
    height: Option<u32>,
    sha256: Option<String>,
    tolerance: Option<u8>,
    pixels: Option<String>,
    error: Option<String>,
    #[allow(dead_code)] // For readers.
    note: Option<String>,
}

pub fn all_cases() -> Vec<Case> {
    let cases = FOLDERS.iter().flat_map(|&(folder, count)| {
        let file = read_image(&format!("{folder}cases.json"));
        let mut cases: Vec<Case> = serde_json::from_slice(&file).unwrap();
        assert_eq!(cases.len(), count, "{folder}");
        for case in &mut cases {
            case.file.insert_str(0, folder);
            case.pixels.iter_mut().for_each(|file| file.insert_str(0, folder));
        }
        cases
    });
    cases.collect()
}

#[test]
fn every_recorded_picture_gives_its_pixels_or_its_error() {
    let cases = all_cases();
    let mut failures = Vec::new();
    for case in &cases {
        if let Err(failure) = check(case) {
            failures.push(format!("{}: {failure}", case.file));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_file_belongs_to_a_case() {
    let mut expected: BTreeSet<String> = OTHER_FILES.map(String::from).into();
    for case in all_cases() {
        expected.insert(case.file);
        expected.extend(case.pixels);
    }
    let mut found = BTreeSet::new();
    for (folder, _) in FOLDERS {
        for file in fs::read_dir(image_path(folder)).unwrap().map(Result::unwrap) {
            let name = file.file_name().into_string().unwrap();
            if file.file_type().unwrap().is_file() {
                found.insert(format!("{folder}{name}"));
            }
        }
    }
    assert_eq!(found, expected);
}

fn check(case: &Case) -> Result<(), String> {
    let data = read_image(&case.file);
    if data.len() != case.bytes {
        return Err(format!("{} bytes, {} recorded", data.len(), case.bytes));
    }
    let decoded = decode_picture(&data, &PictureLimits::default());
    match (&case.error, decoded) {
        (Some(kind), Err(error)) if error.code() == kind.replace(' ', "_") => {
            println!("{}: {error}", case.file);
            Ok(())
        }
        (Some(kind), Err(error)) => {
            Err(format!("{kind} expected, found {}: {error}", error.code()))
        }
        (Some(kind), Ok(picture)) => Err(format!("{kind} expected, found {picture:?}")),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(picture)) => {
            let size = (case.width, case.height);
            if size != (Some(picture.width()), Some(picture.height())) {
                return Err(format!("{picture:?}, {size:?} recorded"));
            }
            if picture_size(&data, &PictureLimits::default()) != Ok(picture.size()) {
                return Err("the header has another size".into());
            }
            compare(case, picture.data())
        }
    }
}

/// Compares the hash, or every value with the recorded tolerance.
fn compare(case: &Case, data: &[u8]) -> Result<(), String> {
    let (tolerance, hash) = (case.tolerance.unwrap(), case.sha256.as_ref().unwrap());
    if sha256(data) == *hash {
        return Ok(());
    }
    let Some(pixels) = &case.pixels else { return Err("other pixels".into()) };
    let expected = read_npy(pixels);
    assert_eq!(sha256(&expected), *hash);
    assert_eq!(expected.len(), data.len());
    let differences = data.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
    let largest = differences.max().unwrap();
    println!("{}: a difference of up to {largest}, {tolerance} allowed", case.file);
    if largest > tolerance { Err(format!("a difference of {largest}")) } else { Ok(()) }
}

/// The values of a NumPy file of unsigned bytes.
fn read_npy(name: &str) -> Vec<u8> {
    let file = read_image(name);
    assert_eq!(&file[..8], b"\x93NUMPY\x01\0");
    let header = usize::from(u16::from_le_bytes([file[8], file[9]]));
    let text = std::str::from_utf8(&file[10..10 + header]).unwrap();
    assert!(text.contains("'|u1'") && text.contains("'fortran_order': False"), "{text}");
    file[10 + header..].to_vec()
}
