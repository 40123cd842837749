//! `puna debug media`: what a model with a vision tower makes of pictures: pixels, rows, chunks of
//! the prompt and logits.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use puna_engine::{
    Evaluator, MediaPrompt, NO_TOKEN, Outputs, PlacedMedium, Projector, PromptMedium,
    SequenceInput, TowerPicture,
};
use puna_media::{PictureLimits, decode_picture};
use puna_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

use super::logits::{compute, number};
use crate::cli::MediaArgs;
use crate::local::{Compute, ModelFile};
use crate::{out, usage};

/// Text in the prompt that stands for the next file, in this command only.
const MARKER: &str = "<__media__>";

/// A part of the prompt: tokens, or a medium with the number of its tower input.
enum Chunk<'a> {
    Text(&'a [u32]),
    Medium(&'a PromptMedium),
}

pub fn run(args: &MediaArgs) -> Result<()> {
    let file = ModelFile::open(&args.model)?;
    let settings = Compute { num_ctx: args.num_ctx, sequences: 2, ..compute(&args.compute)? };
    let projector = args.projector.as_ref().ok_or_else(|| {
        usage::error("the model has no vision tower: give its projector with --projector")
    })?;
    let projector_file = ModelFile::open(projector)?;
    let mut projector = Projector::open(&projector_file.view, Box::new(settings.backend()?))
        .with_context(|| projector_file.display_name.clone())?;
    let tokenizer = Tokenizer::from_metadata(file.view.metadata())?;
    let prompt = read_prompt(args, &tokenizer, &projector)?;
    let mut evaluator = settings.evaluator(&file)?;
    let rows = encode(&mut projector, &prompt.media)?;
    if let Some(folder) = &args.dump {
        dump(folder, &prompt.media, &rows)?;
    }
    let placed = prompt.media.iter().zip(&rows).map(|(medium, rows)| PlacedMedium {
        first: medium.first,
        layout: medium.layout,
        rows: Some(Arc::clone(rows)),
        source: None,
    });
    let placed: Vec<PlacedMedium> = placed.collect();
    let logits = logits(&mut evaluator, &prompt, &placed, &args.split)?;
    let chunks = chunks(&prompt);
    print(&evaluator, &chunks, &logits, args.json)
}

/// Reads the prompt and the files of its markers.
fn read_prompt(
    args: &MediaArgs,
    tokenizer: &Tokenizer,
    projector: &Projector,
) -> Result<MediaPrompt> {
    let markers = args.prompt.matches(MARKER).count();
    if markers != args.files.len() {
        return Err(usage::error(format!(
            "--prompt has {markers} times {MARKER}, but {} files are given: give one file for each",
            args.files.len()
        )));
    }
    let options = EncodeOptions { add_special: false, parse_special: true };
    let mut prompt = MediaPrompt::default();
    prompt.tokens.extend(tokenizer.bos().filter(|_| tokenizer.add_bos()));
    for (number, text) in args.prompt.split(MARKER).enumerate() {
        prompt.tokens.extend(tokenizer.encode(text, options));
        let Some(path) = args.files.get(number) else { continue };
        let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let picture = decode_picture(&data, &PictureLimits::default())
            .map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let content = u128::try_from(number).unwrap_or(0) << 64;
        prompt.push_picture(&picture, content, projector.tower(), tokenizer)?;
    }
    Ok(prompt)
}

/// Rows of all media.
fn encode(projector: &mut Projector, media: &[PromptMedium]) -> Result<Vec<Arc<Vec<f32>>>> {
    let mut all = Vec::new();
    for medium in media {
        let mut rows = projector.encode(&[&medium.picture])?;
        all.push(Arc::new(rows.swap_remove(0)));
    }
    Ok(all)
}

/// Logits of all positions of the last text.
fn logits(
    evaluator: &mut Evaluator,
    prompt: &MediaPrompt,
    media: &[PlacedMedium],
    split: &str,
) -> Result<Vec<Vec<f32>>> {
    let count = prompt.tokens.len();
    let (chunk, beside) = match split {
        "whole" => (count, false),
        "one" => (1, false),
        "batch" => (count, true),
        number => match number.parse() {
            Ok(chunk) if chunk > 0 => (chunk, false),
            _ => {
                return Err(usage::error(format!(
                    "--split must be whole, one, batch or a number of tokens, not `{number}`"
                )));
            }
        },
    };
    for medium in media {
        evaluator.add_medium(1, medium.clone())?;
    }
    let info = evaluator.info();
    ensure!(info.can_generate && info.causal, "{} generates no text", info.architecture);
    let columns = info.n_vocab;
    // The same prompt without media.
    let other: Vec<u32> =
        prompt.tokens.iter().copied().filter(|token| *token != NO_TOKEN).collect();
    let mut all = Vec::new();
    let mut at = 0;
    while at < count {
        let end = step_end(media, at, (at + chunk).min(count));
        let input = |sequence, tokens, outputs| SequenceInput { sequence, tokens, outputs };
        let mut inputs = vec![input(1, &prompt.tokens[at..end], Outputs::All)];
        if beside && !other.is_empty() {
            inputs.insert(0, input(0, &other, Outputs::None));
        }
        let rows = evaluator.logits(&inputs)?;
        all.extend(rows.chunks_exact(columns).map(<[f32]>::to_vec));
        at = end;
    }
    let last = chunks(prompt).pop();
    let Some(Chunk::Text(last)) = last else {
        bail!("the prompt ends with a medium, not with text")
    };
    Ok(all.split_off(all.len() - last.len()))
}

/// End of a step that begins at `at` and would end at `end`: rows that see each other are in one
/// step.
fn step_end(media: &[PlacedMedium], at: usize, end: usize) -> usize {
    let is_cut = |medium: &&PlacedMedium| {
        let inside = medium.first + 1..medium.first + medium.layout.rows;
        medium.layout.sees_itself && inside.contains(&end)
    };
    match media.iter().find(is_cut) {
        Some(medium) if medium.first > at => medium.first,
        Some(medium) => medium.first + medium.layout.rows,
        None => end,
    }
}

/// The prompt as texts and media in order.
fn chunks(prompt: &MediaPrompt) -> Vec<Chunk<'_>> {
    let mut all = Vec::new();
    let mut at = 0;
    for medium in &prompt.media {
        if medium.first > at {
            all.push(Chunk::Text(&prompt.tokens[at..medium.first]));
        }
        all.push(Chunk::Medium(medium));
        at = medium.first + medium.layout.rows;
    }
    if at < prompt.tokens.len() {
        all.push(Chunk::Text(&prompt.tokens[at..]));
    }
    all
}

/// Writes the pixels and the rows of each medium as `.npy` files.
fn dump(folder: &Path, media: &[PromptMedium], rows: &[Arc<Vec<f32>>]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let write = |name: String, shape: &[usize], values: &[f32]| {
        let path = folder.join(name);
        fs::write(&path, npy(shape, values))
            .with_context(|| format!("cannot write {}", path.display()))
    };
    for (number, (medium, rows)) in media.iter().zip(rows).enumerate() {
        let TowerPicture { width, height, planes } = &*medium.picture;
        write(format!("input-{number}.npy"), &[1, 3, *height, *width], planes)?;
        let count = medium.layout.rows;
        write(format!("rows-{number}.npy"), &[count, rows.len() / count], rows)?;
    }
    Ok(())
}

/// An array in NumPy's format, version 1.0.
fn npy(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
    let shape = shape.join(", ");
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    // Magic, version, length and header are a multiple of 64 bytes with the line break.
    let padded = (10 + header.len() + 1).next_multiple_of(64);
    header += &" ".repeat(padded - 10 - header.len() - 1);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn print(
    evaluator: &Evaluator,
    chunks: &[Chunk<'_>],
    logits: &[Vec<f32>],
    as_json: bool,
) -> Result<()> {
    let mut position = 0;
    let mut described = Vec::new();
    for chunk in chunks {
        let positions = match chunk {
            Chunk::Text(tokens) => tokens.len(),
            Chunk::Medium(medium) => evaluator.media_positions(&medium.layout),
        };
        described.push(match chunk {
            Chunk::Text(tokens) => {
                json!({"type": "text", "position": position, "tokens": tokens})
            }
            Chunk::Medium(medium) => json!({
                "type": "image", "position": position,
                "n_tokens": medium.layout.rows, "n_pos": positions,
            }),
        });
        position += positions;
    }
    if as_json {
        let logits: Vec<Value> =
            logits.iter().map(|row| row.iter().map(|x| number(*x)).collect()).collect();
        return out::json(&json!({"chunks": described, "logits": logits}));
    }
    let mut text = String::new();
    for chunk in &described {
        text.push_str(&format!("{chunk}\n"));
    }
    for (at, row) in logits.iter().enumerate() {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let best = best.unwrap_or(0);
        text.push_str(&format!("logits {at}: largest {best}: {:.4}\n", row[best]));
    }
    out::text(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_have_numpys_header() {
        let bytes = npy(&[1, 2], &[1.0, -2.0]);
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
        let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert!((10 + header).is_multiple_of(64) && bytes[10 + header - 1] == b'\n');
        assert!(String::from_utf8_lossy(&bytes[10..10 + header]).contains("'shape': (1, 2)"));
        assert_eq!(bytes[10 + header..], [1.0f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat());
    }
}
