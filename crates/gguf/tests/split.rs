//! Split files.

use std::path::{Path, PathBuf};

use puna_gguf::{Advice, Gguf, GgufError, LoadMode, Writer};
use puna_quant::TensorType::F32;

/// Writes part `index` of `count` with tensor `t<index>` of 8 values, each `index`.
fn write_part(dir: &Path, index: u16, count: u16, change: impl FnOnce(&mut Writer)) -> PathBuf {
    let mut writer = Writer::new();
    if index == 0 {
        writer.set("general.architecture", "llama").set("llama.block_count", 3u32);
    }
    writer
        .set("split.no", index)
        .set("split.count", count)
        .set("split.tensors.count", i32::from(count));
    // Every part has its own alignment.
    writer.set("general.alignment", 32u32 << index);
    writer.tensor(&format!("t{index}"), F32, &[4, 2]).unwrap();
    change(&mut writer);
    let path = dir.join(format!("m-{:05}-of-{count:05}.gguf", index + 1));
    let values: Vec<u8> = [f32::from(index); 8].iter().flat_map(|v| v.to_le_bytes()).collect();
    let data = vec![&values[..]; writer.tensors().len()];
    std::fs::write(&path, writer.to_vec(data).unwrap()).unwrap();
    path
}

/// A model of three parts, of which `change` modifies one.
fn model(changed: u16, change: impl FnOnce(&mut Writer)) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let mut change = Some(change);
    for index in 0..3 {
        write_part(dir.path(), index, 3, |w| {
            if index == changed {
                change.take().unwrap()(w);
            }
        });
    }
    let first = dir.path().join("m-00001-of-00003.gguf");
    (dir, first)
}

fn error(path: &Path) -> GgufError {
    Gguf::open(path).map(drop).unwrap_err()
}

#[test]
fn all_parts_are_opened_as_one_model() {
    let (_dir, first) = model(0, |_| ());
    let gguf = Gguf::open(&first).unwrap();
    assert_eq!((gguf.part_count(), gguf.paths().count(), gguf.path()), (3, 3, Some(&*first)));
    assert_eq!(gguf.metadata().u32("llama.block_count"), Ok(3));
    let names: Vec<_> = gguf.tensors().iter().map(|t| &*t.name).collect();
    assert_eq!(names, ["t0", "t1", "t2"]);
    for (index, tensor) in gguf.tensors().iter().enumerate() {
        assert_eq!(gguf.data(tensor)[..4], (index as f32).to_le_bytes());
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
    }
    let bytes: u64 = gguf.paths().map(|p| p.metadata().unwrap().len()).sum();
    assert_eq!(gguf.file_size(), bytes);
    gguf.check_unchanged().unwrap();
}

#[test]
fn a_model_loaded_into_memory_is_the_same() {
    let (dir, first) = model(0, |_| ());
    let (mapped, read) =
        (Gguf::open(&first).unwrap(), Gguf::open_with(&first, LoadMode::Memory).unwrap());
    assert_eq!((mapped.metadata(), mapped.tensors()), (read.metadata(), read.tensors()));
    // The model no longer depends on the files.
    let third = dir.path().join("m-00003-of-00003.gguf");
    std::fs::File::options().write(true).open(third).unwrap().set_len(0).unwrap();
    for (index, tensor) in read.tensors().iter().enumerate() {
        assert_eq!(read.data(tensor), [(index as f32).to_le_bytes(); 8].concat());
        assert!(read.shared(tensor).is_aligned());
        read.advise_tensor(tensor, Advice::WillNeed);
    }
}

#[test]
fn memory_advice_is_accepted_for_any_model() {
    let (_dir, first) = model(0, |_| ());
    let gguf = Gguf::open(&first).unwrap();
    for advice in [Advice::WillNeed, Advice::Sequential, Advice::Random, Advice::Normal] {
        gguf.advise(advice);
        gguf.tensors().iter().for_each(|tensor| gguf.advise_tensor(tensor, advice));
    }
    assert_eq!(gguf.data(&gguf.tensors()[2]), [2.0f32.to_le_bytes(); 8].concat());
}

#[test]
fn split_keys_may_have_the_architecture_prefix() {
    let (_dir, first) = model(0, |w| {
        for (key, value) in [("no", 0u64), ("count", 3), ("tensors.count", 3)] {
            w.metadata_mut().remove(&format!("split.{key}"));
            w.set(&format!("llama.split.{key}"), value);
        }
    });
    assert_eq!(Gguf::open(&first).unwrap().part_count(), 3);
}

#[test]
fn a_split_count_of_one_is_a_single_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = write_part(dir.path(), 0, 1, |_| ());
    let other = dir.path().join("whatever.gguf");
    std::fs::rename(path, &other).unwrap();
    assert_eq!(Gguf::open(&other).unwrap().part_count(), 1);
}

#[test]
fn n53_a_missing_part_is_named() {
    let (dir, first) = model(0, |_| ());
    let second = dir.path().join("m-00002-of-00003.gguf");
    std::fs::remove_file(&second).unwrap();
    let e = error(&first);
    assert_eq!(e.code(), "gguf_split_missing");
    assert!(e.to_string().contains("m-00002-of-00003.gguf"), "{e}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&second, &second).unwrap();
        assert_eq!(error(&first).code(), "gguf_split_missing", "a loop of links");
    }
}

#[test]
fn n53_wrong_part_numbers_and_counts_are_refused() {
    let (_dir, first) = model(1, |w| {
        w.set("split.no", 2u16);
    });
    assert_eq!(error(&first).code(), "gguf_split_index");
    let (_dir, first) = model(2, |w| {
        w.metadata_mut().remove("split.no");
    });
    assert_eq!(error(&first).code(), "gguf_split_index");
    let (_dir, first) = model(0, |w| {
        w.set("split.count", 4u16);
    });
    assert_eq!(error(&first).code(), "gguf_split_count");
    let (_dir, first) = model(2, |w| {
        w.set("split.count", 2u16);
    });
    assert_eq!(error(&first).code(), "gguf_split_count");
    let (_dir, first) = model(0, |w| {
        w.set("split.count", u64::MAX);
    });
    assert_eq!(error(&first).code(), "gguf_split_count");
    let (_dir, first) = model(0, |w| {
        w.set("split.tensors.count", 4i32);
    });
    assert_eq!(error(&first).code(), "gguf_split_total");
    let (_dir, first) = model(0, |w| {
        w.metadata_mut().remove("split.tensors.count");
    });
    assert_eq!(error(&first).code(), "gguf_split_total");
}

#[test]
fn n53_a_repeated_part_is_refused() {
    let (dir, first) = model(0, |_| ());
    std::fs::copy(
        dir.path().join("m-00002-of-00003.gguf"),
        dir.path().join("m-00003-of-00003.gguf"),
    )
    .unwrap();
    assert_eq!(error(&first).code(), "gguf_split_index");
}

#[test]
fn n53_the_opened_file_must_be_the_first_part() {
    let (dir, first) = model(0, |_| ());
    let e = error(&dir.path().join("m-00003-of-00003.gguf"));
    assert_eq!(
        e,
        GgufError::SplitEntry {
            path: dir.path().join("m-00003-of-00003.gguf"),
            first: first.clone()
        }
    );
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(&first, &renamed).unwrap();
    assert_eq!(error(&renamed), GgufError::SplitName { path: renamed, count: 3 });
}

#[test]
fn n24_a_tensor_in_two_parts_is_refused() {
    let (_dir, first) = model(2, |w| {
        w.tensor("t0", F32, &[4, 2]).unwrap();
        w.set("split.tensors.count", 4i32);
    });
    // The first part declares four tensors.
    let text = |e: GgufError| (e.code(), e.to_string());
    assert_eq!(text(error(&first)).0, "gguf_split_total");
    let (dir, first) = model(2, |w| {
        w.tensor("t0", F32, &[4, 2]).unwrap();
    });
    write_part(dir.path(), 0, 3, |w| {
        w.set("split.tensors.count", 4i32);
    });
    assert_eq!(error(&first), GgufError::TensorDuplicate { name: "t0".into() });
}

#[test]
fn an_error_in_another_part_names_its_file() {
    let (dir, first) = model(0, |_| ());
    let second = dir.path().join("m-00002-of-00003.gguf");
    let bytes = std::fs::read(&second).unwrap();
    std::fs::write(&second, &bytes[..bytes.len() - 40]).unwrap();
    let e = error(&first);
    assert_eq!(e.code(), "gguf_tensor_out_of_file");
    assert!(e.to_string().contains("m-00002-of-00003.gguf: tensor `t1` ends at"), "{e}");
}

#[test]
fn truncation_after_opening_is_detected() {
    let (dir, first) = model(0, |_| ());
    let gguf = Gguf::open(&first).unwrap();
    let third = dir.path().join("m-00003-of-00003.gguf");
    let len = third.metadata().unwrap().len();
    std::fs::File::options().write(true).open(&third).unwrap().set_len(len - 1).unwrap();
    let e = gguf.check_unchanged().unwrap_err();
    assert_eq!(e, GgufError::FileChanged { path: third, expected: len, found: len - 1 });
}

#[test]
fn paths_without_a_gguf_file_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let e = error(dir.path());
    assert!(e.code() == "gguf_io" && e.to_string().contains("directory"), "{e}");
    let e = error(&dir.path().join("none.gguf"));
    assert!(matches!(&e, GgufError::Io { kind: std::io::ErrorKind::NotFound, .. }), "{e}");
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert_eq!(error(&empty).code(), "gguf_truncated_header");
}
