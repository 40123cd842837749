//! `puna perplexity`: measures how well a model predicts a text, and its divergence from another
//! file of the same model.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use puna_engine::{Evaluator, Outputs, SequenceInput};
use puna_store::{Digest, same_file};
use puna_tokenizer::EncodeOptions;
use serde_json::{Value, json};

use super::debug::kv_type;
use crate::cli::PerplexityArgs;
use crate::local::{Compute, ModelFile, OutputFile};
use crate::{out, usage};

/// Rows of logits computed at a time.
const ROWS: usize = 32;

pub fn run(args: &PerplexityArgs) -> Result<()> {
    if let (Some(base), Some(saved)) = (&args.kl_base, &args.save_logits)
        && (base == saved || same_file(base, saved))
    {
        return Err(usage::error(format!(
            "{} cannot be both --kl-base and --save-logits",
            base.display()
        )));
    }
    let file = ModelFile::open(&args.model)?;
    let tokenizer = file.tokenizer()?;
    let bytes = std::fs::read(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false });
    let windows = windows(tokens.len(), args)?;
    let compute = Compute {
        num_ctx: Some(args.ctx),
        cache_k: kv_type(&args.cache_type_k)?,
        cache_v: kv_type(&args.cache_type_v)?,
        ..Compute::new(args.threads, args.kernels.clone())?
    };
    let mut evaluator = compute.evaluator(&file)?;
    let info = evaluator.info().clone();
    if !info.can_generate {
        bail!(
            "{} is an embedding model: perplexity needs a model that generates text",
            file.display_name
        );
    }
    if info.start.is_some() {
        bail!(
            "{} is an encoder–decoder model: perplexity needs a decoder-only model",
            file.display_name
        );
    }
    if info.unmasking.is_some() {
        bail!(
            "{} is a diffusion model: perplexity needs an autoregressive model",
            file.display_name
        );
    }
    if info.n_ctx < args.ctx {
        bail!(
            "{} was trained with a context of {}; use --ctx {}",
            file.display_name,
            info.n_ctx_train,
            info.n_ctx
        );
    }
    let head = LogitsHeader::new(args, info.n_vocab, windows.len(), &tokens);
    let mut saved = args.save_logits.as_ref().map(|path| Saver::create(path, head)).transpose()?;
    let mut base = args.kl_base.as_ref().map(|path| Base::open(path, head)).transpose()?;
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let mut score = Score::default();
    for (number, window) in windows.iter().enumerate() {
        let mut ids = tokens[window.start..window.end].to_vec();
        if let Some(bos) = bos {
            // Every window begins with the begin-of-sequence token.
            ids[0] = bos;
        }
        let first = window.first - window.start;
        evaluator.truncate(0, 0);
        feed(&mut evaluator, &ids, first, &mut |row, next| {
            let log_probs = log_softmax(row);
            score.token(-f64::from(log_probs[next as usize]));
            if let Some(saver) = &mut saved {
                saver.row(&log_probs)?;
            }
            if let Some(base) = &mut base {
                score.compare(&base.row()?, &log_probs);
            }
            Ok(())
        })?;
        let (done, all) = (number + 1, windows.len());
        out::note(format_args!("[{done}/{all}] {:.4}", score.perplexity()));
    }
    if let Some(saver) = saved {
        saver.finish()?;
    }
    print(args, &score)
}

/// A range of tokens fed together. Predictions from `first` on are scored.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    start: usize,
    first: usize,
    end: usize,
}

fn windows(tokens: usize, args: &PerplexityArgs) -> Result<Vec<Window>> {
    let ctx = args.ctx;
    if ctx < 4 {
        return Err(usage::error("--ctx must be at least 4"));
    }
    let stride = args.stride.unwrap_or(ctx);
    if stride == 0 || stride > ctx {
        return Err(usage::error(format!("--stride must be between 1 and --ctx ({ctx})")));
    }
    let mut windows = Vec::new();
    let mut start = 0;
    while start + ctx <= tokens {
        // Without a stride, the second half of each window is scored. With a stride, the
        // predictions of the window's new tokens are scored. The first of them comes from the
        // preceding token, which a window of only new tokens lacks.
        let first = match args.stride {
            None => start + ctx / 2,
            Some(_) if start == 0 => 0,
            Some(_) => (start + ctx - stride - 1).max(start),
        };
        windows.push(Window { start, first, end: start + ctx });
        start += stride;
    }
    windows.truncate(args.chunks.unwrap_or(usize::MAX));
    if windows.is_empty() {
        bail!("{} has {tokens} tokens; a window needs {ctx} (--ctx)", args.file.display());
    }
    Ok(windows)
}

/// Feeds a window. `each` receives the logits at every scored position and the next token.
fn feed(
    evaluator: &mut Evaluator,
    ids: &[u32],
    first: usize,
    each: &mut dyn FnMut(&[f32], u32) -> Result<()>,
) -> Result<()> {
    let n_vocab = evaluator.info().n_vocab;
    // Tokens before the first scored prediction need no logits.
    for piece in ids[..first].chunks(512) {
        evaluator.logits(&[SequenceInput {
            sequence: 0,
            tokens: piece,
            outputs: Outputs::None,
        }])?;
    }
    for at in (first..ids.len() - 1).step_by(ROWS) {
        let end = (at + ROWS).min(ids.len() - 1);
        let feed = SequenceInput { sequence: 0, tokens: &ids[at..end], outputs: Outputs::All };
        let rows = evaluator.logits(&[feed])?;
        for (row, next) in rows.chunks_exact(n_vocab).zip(&ids[at + 1..]) {
            each(row, *next)?;
        }
    }
    Ok(())
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = sum.ln() as f32 + max;
    logits.iter().map(|&x| x - log_sum).collect()
}

/// Sums over all scored tokens.
#[derive(Default)]
struct Score {
    count: u64,
    nll: f64,
    nll_squares: f64,
    divergences: Vec<f32>,
    same_top: u64,
}

impl Score {
    fn token(&mut self, nll: f64) {
        self.count += 1;
        self.nll += nll;
        self.nll_squares += nll * nll;
    }

    /// Adds the Kullback–Leibler divergence of `ours` from `base`; both are log-probabilities.
    fn compare(&mut self, base: &[f32], ours: &[f32]) {
        let terms = base.iter().zip(ours).map(|(&b, &o)| f64::from(b).exp() * f64::from(b - o));
        self.divergences.push(terms.sum::<f64>().max(0.0) as f32);
        self.same_top += u64::from(top(base) == top(ours));
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.count as f64).exp()
    }

    /// Standard error of the perplexity.
    fn stderr(&self) -> f64 {
        let n = self.count as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squares / n - mean * mean).max(0.0);
        (variance / (n - 1.0).max(1.0)).sqrt() * self.perplexity()
    }

    fn divergence(&self) -> Option<Divergence> {
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f32::total_cmp);
        let n = sorted.len();
        let last = n.checked_sub(1)?;
        let mean = sorted.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        let stderr = (squares / (last as f64).max(1.0) / n as f64).sqrt();
        // Linear interpolation between the neighbours, as in most tools.
        let at = last as f64 * 0.99;
        let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        let p99 = f64::from(low) + f64::from(high - low) * at.fract();
        Some(Divergence { mean, stderr, p99, same: self.same_top as f64 / n as f64 })
    }
}

/// Statistics of the divergence over all scored positions.
#[derive(Debug, Clone, Copy)]
struct Divergence {
    mean: f64,
    /// Standard error of the mean.
    stderr: f64,
    /// 99th percentile.
    p99: f64,
    /// Fraction of positions with the same most probable token.
    same: f64,
}

fn top(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = i;
        }
    }
    best
}

fn print(args: &PerplexityArgs, score: &Score) -> Result<()> {
    let divergence = score.divergence();
    if args.json {
        let of = |pick: fn(Divergence) -> f64| divergence.map_or(Value::Null, |d| json!(pick(d)));
        return out::json(&json!({
            "tokens": score.count, "perplexity": score.perplexity(), "stderr": score.stderr(),
            "kl_mean": of(|d| d.mean), "kl_stderr": of(|d| d.stderr), "kl_p99": of(|d| d.p99),
            "top1_agreement": of(|d| d.same),
        }));
    }
    let mut text = format!(
        "perplexity {:.4} ± {:.4} over {} tokens\n",
        score.perplexity(),
        score.stderr(),
        score.count
    );
    if let Some(Divergence { mean, stderr, p99, same }) = divergence {
        text.push_str(&format!(
            "divergence from the base: mean {mean:.6} ± {stderr:.6} nats, 99th percentile {p99:.6}\n\
             same most probable token: {:.2} %\n",
            same * 100.0
        ));
    }
    out::text(&text)
}

/// Header of a file of saved logits. It must be equal for the file that is compared.
///
/// ```text
/// "PUNALGT2"  u32 vocabulary  u32 windows  u64 tokens  u64 ctx  u64 stride, or 0
///     64 digits of the tokens' digest
/// a row for each scored position: f32 smallest, f32 step, then u16 for each token:
///     log p = smallest + step · value
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogitsHeader {
    n_vocab: u32,
    windows: u32,
    tokens: u64,
    ctx: u64,
    /// 0 if no stride was given.
    stride: u64,
    /// Digest of the ids of all tokens.
    text: Digest,
}

const MAGIC: &[u8; 8] = b"PUNALGT2";

impl LogitsHeader {
    fn new(args: &PerplexityArgs, n_vocab: usize, windows: usize, tokens: &[u32]) -> Self {
        let numbers: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        Self {
            n_vocab: n_vocab as u32,
            windows: windows as u32,
            tokens: tokens.len() as u64,
            ctx: args.ctx as u64,
            stride: args.stride.unwrap_or(0) as u64,
            text: Digest::of(&numbers),
        }
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.n_vocab.to_le_bytes());
        bytes.extend_from_slice(&self.windows.to_le_bytes());
        for number in [self.tokens, self.ctx, self.stride] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(self.text.hex().as_bytes());
        bytes
    }
}

/// Log-probabilities further below the maximum are stored as equal.
const LOG_PROB_RANGE: f32 = 24.0;

struct Saver {
    out: BufWriter<File>,
    whole: OutputFile,
    shown: String,
}

impl Saver {
    fn create(path: &Path, head: LogitsHeader) -> Result<Self> {
        let shown = path.display().to_string();
        let whole = OutputFile::create(path)?;
        let file = whole.file().try_clone().with_context(|| format!("cannot write {shown}"))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&head.bytes())?;
        Ok(Self { out, whole, shown })
    }

    fn row(&mut self, log_probs: &[f32]) -> Result<()> {
        let max = log_probs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let min = log_probs.iter().copied().fold(f32::INFINITY, f32::min).max(max - LOG_PROB_RANGE);
        let step = (max - min) / f32::from(u16::MAX);
        let mut bytes = Vec::with_capacity(8 + 2 * log_probs.len());
        bytes.extend_from_slice(&min.to_le_bytes());
        bytes.extend_from_slice(&step.to_le_bytes());
        for x in log_probs {
            let value = if step > 0.0 { ((x.max(min) - min) / step).round() as u16 } else { 0 };
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        self.out.write_all(&bytes).with_context(|| format!("cannot write {}", self.shown))
    }

    fn finish(mut self) -> Result<()> {
        self.out.flush().with_context(|| format!("cannot write {}", self.shown))?;
        self.whole.finish()
    }
}

struct Base {
    rows: BufReader<File>,
    n_vocab: usize,
    shown: String,
}

impl Base {
    fn open(path: &Path, want: LogitsHeader) -> Result<Self> {
        let shown = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
        let mut rows = BufReader::with_capacity(1 << 20, file);
        let mut magic = [0; MAGIC.len()];
        let short = || format!("{shown} is too short for saved logits");
        rows.read_exact(&mut magic).with_context(short)?;
        if magic == *b"PUNALGT1" {
            bail!("{shown} was saved by an older version: save it again");
        }
        if magic != *MAGIC {
            bail!("{shown} has no logits saved by --save-logits");
        }
        let mut head = vec![0; want.bytes().len() - MAGIC.len()];
        rows.read_exact(&mut head).with_context(short)?;
        if head != want.bytes()[MAGIC.len()..] {
            bail!(
                "{shown} was saved for another text, vocabulary or window: use the same --file, --ctx, --stride and \
                 --chunks"
            );
        }
        Ok(Self { rows, n_vocab: want.n_vocab as usize, shown })
    }

    fn row(&mut self) -> Result<Vec<f32>> {
        let mut bytes = vec![0; 8 + 2 * self.n_vocab];
        self.rows
            .read_exact(&mut bytes)
            .with_context(|| format!("{} ends too early", self.shown))?;
        let float = |at: usize| {
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (min, step) = (float(0), float(4));
        let values = bytes[8..].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        Ok(values.map(|value| min + step * f32::from(value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(ctx: usize, stride: Option<usize>) -> PerplexityArgs {
        let (file, kl_base, save_logits, kernels) = ("t".into(), None, None, None);
        PerplexityArgs {
            model: "m".into(),
            file,
            ctx,
            stride,
            kl_base,
            save_logits,
            chunks: None,
            kernels,
            cache_type_k: "f16".into(),
            cache_type_v: "f16".into(),
            threads: None,
            json: false,
        }
    }

    #[test]
    fn windows_cover_the_text() {
        let bounds = |tokens, ctx, stride| -> Vec<_> {
            windows(tokens, &args(ctx, stride))
                .unwrap()
                .iter()
                .map(|w| (w.start, w.first, w.end))
                .collect()
        };
        assert_eq!(bounds(1100, 512, None), [(0, 256, 512), (512, 768, 1024)]);
        assert_eq!(bounds(8, 4, Some(2)), [(0, 0, 4), (2, 3, 6), (4, 5, 8)]);
        assert!(windows(511, &args(512, None)).unwrap_err().to_string().contains("has 511 tokens"));
        assert!(windows(511, &args(64, Some(65))).is_err());
    }

    #[test]
    fn with_a_stride_every_token_is_predicted_once() {
        let predicted = |ctx: usize, stride: usize| -> Vec<usize> {
            let windows = windows(41, &args(ctx, Some(stride))).unwrap();
            windows.iter().flat_map(|window| window.first + 1..window.end).collect()
        };
        // Windows with a common token end at 8, 8 + stride and so on.
        for (stride, end) in [(1, 41), (3, 41), (4, 40), (7, 36)] {
            assert_eq!(predicted(8, stride), (1..end).collect::<Vec<_>>(), "{stride}");
        }
        // Without a common token, no position predicts the first token of a window.
        assert_eq!(predicted(8, 8), (1..40).filter(|token| token % 8 != 0).collect::<Vec<_>>());
    }

    #[test]
    fn statistics_match_their_definitions() {
        let mut score = Score::default();
        for p in [0.5f64, 0.25, 0.125] {
            score.token(-p.ln());
        }
        assert!((score.perplexity() - 4.0).abs() < 1e-12);
        let (base, ours) = ([0.5f32.ln(), 0.5f32.ln()], [0.75f32.ln(), 0.25f32.ln()]);
        score.compare(&base, &ours);
        let one = score.divergence().unwrap();
        let want = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((one.mean - want).abs() < 1e-6 && (one.p99 - want).abs() < 1e-6 && one.same == 1.0);
        assert_eq!(one.stderr, 0.0);
        score.divergences = vec![1.0, 2.0, 3.0, 6.0];
        let four = score.divergence().unwrap();
        // The standard deviation is √(14/3); divided by √4 it gives the error of the mean.
        assert!(
            (four.mean - 3.0).abs() < 1e-9 && (four.stderr - (14.0f64 / 12.0).sqrt()).abs() < 1e-9
        );
        let row = log_softmax(&[1.0, 2.0, 3.0]);
        assert!((row.iter().map(|x| x.exp()).sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn saved_logits_round_trip_only_for_the_same_text() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let head = LogitsHeader::new(&args(4, None), 5, 1, &[1, 2, 3, 4]);
        let row = log_softmax(&[0.0, 3.0, -2.0, 1.0, -90.0]);
        let mut saver = Saver::create(path.path(), head).unwrap();
        saver.row(&row).unwrap();
        saver.finish().unwrap();
        let mut base = Base::open(path.path(), head).unwrap();
        let back = base.row().unwrap();
        assert!(row.iter().zip(&back).take(4).all(|(a, b)| (a - b).abs() < 2e-4));
        assert!(back[4].exp() < 1e-9);
        assert!(base.row().unwrap_err().to_string().contains("ends too early"));
        for other in [
            LogitsHeader::new(&args(4, None), 5, 1, &[1, 2, 4, 3]),
            LogitsHeader::new(&args(4, Some(2)), 5, 1, &[1, 2, 3, 4]),
            LogitsHeader::new(&args(5, None), 5, 1, &[1, 2, 3, 4]),
            LogitsHeader::new(&args(4, None), 5, 2, &[1, 2, 3, 4]),
        ] {
            let error = Base::open(path.path(), other).err().unwrap().to_string();
            assert!(
                error.contains("saved for another text") && error.contains("--chunks"),
                "{error}"
            );
        }
        std::fs::write(path.path(), b"PUNALGT1\0\0").unwrap();
        assert!(Base::open(path.path(), head).err().unwrap().to_string().contains("save it again"));
    }
}
