//! Folders with matrices in shards of the devices that the model was trained on.

use serde_json::json;

use super::compare;
use super::config::folder_config;
use super::fixtures::{Folder, StoredTensor, bytes, convert_files, safetensors, values, zoo};
use super::folder_tensors::tensors;
use super::vocabulary::put_vocabulary;
use crate::FolderFile;

/// Cuts a matrix of a folder into `count` shards by rows or by columns.
fn cut(
    (name, dtype, shape, data): &StoredTensor,
    count: usize,
    by_columns: bool,
) -> Vec<StoredTensor> {
    let size = data.len() / shape.iter().product::<u64>() as usize;
    let (rows, columns) = (shape[0] as usize, shape[1] as usize * size);
    let part = |number: usize| {
        let (mut shape, mut bytes) = (shape.clone(), Vec::new());
        shape[usize::from(by_columns)] /= count as u64;
        for row in 0..rows {
            let (row_here, of) = if by_columns {
                (true, columns / count)
            } else {
                (row * count / rows == number, 0)
            };
            let from = row * columns + number * of;
            let take = if by_columns { of } else { columns };
            bytes.extend_from_slice(if row_here { &data[from..from + take] } else { &[] });
        }
        (name.clone(), *dtype, shape, bytes)
    };
    (0..count).map(part).collect()
}

/// Grok 2's experts are sharded among eight devices with separate files.
#[test]
fn experts_in_device_shards_are_joined() {
    let want = zoo("grok-2");
    let number = |key: &str| want.metadata().f32(&format!("grok.{key}")).unwrap();
    let mut config = folder_config(&want, "Grok1ForCausalLM", None);
    for (source, target) in [
        ("attn_output_multiplier", "attention.output_scale"),
        ("embedding_multiplier_scale", "embedding_scale"),
        ("output_multiplier_scale", "logit_scale"),
        ("router_logit_softcapping", "router_logit_softcapping"),
    ] {
        config[source] = number(target).into();
    }
    let (experts, common): (Vec<_>, Vec<_>) =
        tensors(&want).into_iter().partition(|tensor| tensor.0.contains(".experts."));
    let count = 8;
    let mut files = vec![Vec::new(); count];
    for tensor in &experts {
        let parts = cut(tensor, count, tensor.0.ends_with("w2.weight"));
        files.iter_mut().zip(parts).for_each(|(file, part)| file.push(part));
    }
    let mut folder = Folder::new();
    // The order of files must not matter.
    for (device, file) in files.iter().enumerate().rev() {
        folder.put(&format!("pytorch_model-00002-TP-{device:03}.safetensors"), safetensors(file));
    }
    folder.put("pytorch_model-00001-TP-common.safetensors", safetensors(&common));
    folder.put("config.json", config.to_string());
    put_vocabulary(&want, &mut folder);
    compare("grok-2", &want, &folder, &["vocab_size"]);
    let all = folder.files.clone();
    let missing = |device| {
        format!(
            "the shard of device {device} of tensor model.layers.0.block_sparse_moe.experts.0.w1.weight is missing"
        )
    };
    // If the last device's shard is missing, experts are only narrower than configured.
    let narrow = "experts.0.w1.weight has shape [21, 48], expected [24, 48]".to_owned();
    for (source, want) in [
        (vec![0, 1, 2, 4, 5, 6, 7], missing(3)),
        (vec![1, 2, 3, 4, 5, 6, 7], missing(0)),
        (vec![0], missing(1)),
        (vec![5], missing(0)),
        (vec![0, 1, 2, 3, 4, 5, 6], narrow),
    ] {
        let is_there = |file: &&FolderFile| {
            let is_of = |device: &u32| file.name.contains(&format!("-TP-{device:03}."));
            !file.name.contains("-TP-0") || source.iter().any(is_of)
        };
        let files: Vec<FolderFile> = all.iter().filter(is_there).cloned().collect();
        let error = convert_files(&files).err().unwrap().to_string();
        assert!(error.contains(&want), "{source:?}: {error}");
    }
    folder.put("pytorch_model-00003-TP-000.safetensors", safetensors(&files[0]));
    let error = convert_files(&folder.files).err().unwrap().to_string();
    assert!(
        error.contains("experts.0.w1.weight occurs twice among the files of device 0"),
        "{error}"
    );
}

/// FP8 codes of the numbers one to five.
const CODES: [u8; 5] = [0x38, 0x40, 0x44, 0x48, 0x4a];

/// MiMo's FP8 matrix has, for each device, its queries, keys and values with their own block
/// scales.
#[test]
fn sharded_fp8_qkv_is_split() {
    let want = zoo("mimo2");
    let number = |row: usize, column: usize| (row * 7 + column) % CODES.len();
    let scale = |block: usize, across: usize| 2f32.powi(((block + 2 * across) % 5) as i32 - 2);
    let mut config = folder_config(&want, "MiMoV2ForCausalLM", None);
    for (key, value) in [
        ("hybrid_layer_pattern", json!([0, 1, 1])),
        ("num_key_value_heads", json!(2)),
        ("swa_num_key_value_heads", json!(1)),
        ("v_head_dim", json!(12)),
        ("layernorm_epsilon", json!(1e-5)),
        ("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [4, 32]})),
    ] {
        config[key] = value;
    }
    let mut stored = tensors(&want);
    let (columns, across) = (48, 2);
    // Layer, number of devices, and rows of queries, keys and values.
    let layers = [(0, 8, [80, 40, 24]), (1, 4, [80, 20, 12])];
    // Rows in the folder's order, each with the number of its row of scale blocks.
    let laid = |devices: usize, rows: [usize; 3]| {
        let mut all = Vec::new();
        let each = rows.iter().sum::<usize>() / devices;
        for device in 0..devices {
            let (mut first, mut within) = (0, 0);
            for rows in rows {
                let target = rows / devices;
                for row in device * target..(device + 1) * target {
                    all.push((first + row, device * each.div_ceil(4) + within / 4));
                    within += 1;
                }
                first += rows;
            }
        }
        all
    };
    for (layer, devices, rows) in layers {
        let name = format!("model.layers.{layer}.self_attn.");
        stored.retain(|tensor| {
            !["q_proj", "k_proj", "v_proj"]
                .iter()
                .any(|part| tensor.0.starts_with(&format!("{name}{part}")))
        });
        let order = laid(devices, rows);
        let data = order
            .iter()
            .flat_map(|(row, _)| (0..columns).map(|column| CODES[number(*row, column)]));
        let shape = vec![order.len() as u64, columns as u64];
        stored.push((format!("{name}qkv_proj.weight"), "F8_E4M3", shape, data.collect()));
        let blocks = order.last().unwrap().1 + 1;
        let scales: Vec<f32> =
            (0..blocks * across).map(|at| scale(at / across, at % across)).collect();
        let shape = vec![blocks as u64, across as u64];
        stored.push((
            format!("{name}qkv_proj.weight_scale_inv"),
            "F32",
            shape,
            bytes(&scales, "F32"),
        ));
    }
    let mut folder = Folder::new();
    folder.put("model.safetensors", safetensors(&stored));
    folder.put("config.json", config.to_string());
    put_vocabulary(&want, &mut folder);
    let made = convert_files(&folder.files).unwrap();
    for (layer, devices, rows) in layers {
        let order = laid(devices, rows);
        let mut first = 0;
        for (part, rows) in ["attn_q", "attn_k", "attn_v"].into_iter().zip(rows) {
            let tensor = made.tensor(&format!("blk.{layer}.{part}.weight")).unwrap();
            assert_eq!(tensor.shape, [columns as u64, rows as u64]);
            for (at, found) in values(&made, tensor).into_iter().enumerate() {
                let (row, column) = (first + at / columns, at % columns);
                let (_, block) = order.iter().find(|(source, _)| *source == row).unwrap();
                let value = (number(row, column) + 1) as f32 * scale(*block, column / 32);
                assert_eq!(found, value, "{part} of layer {layer}, row {row}, column {column}");
            }
            first += rows;
        }
        assert!(made.tensor(&format!("blk.{layer}.attn_qkv.weight")).is_none());
    }
}
