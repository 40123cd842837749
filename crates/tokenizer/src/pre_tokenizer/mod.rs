//! Pre-tokenizers: split text into words before byte-pair encoding.
//!
//! A pattern set is a list of stages. Each stage is a hand-written scanner for one regular
//! expression, which its comment quotes. A stage splits the pieces of the stage before it: each
//! match becomes a piece, and so does each gap. Look-ahead ends at the end of a piece. All stages
//! take time linear in the text. The expressions have llama.cpp's meaning. If the model's publisher
//! meant something else, such as letter case outside of ASCII, `original` has the publisher's
//! meaning.
//!
//! Tests compare each set with its expressions in a general regex engine.

mod cased;
mod deepseek;
#[cfg(test)]
mod regex_tests;
mod runs;
mod words;

use std::sync::atomic::AtomicBool;

use crate::control::is_set;
use crate::unicode::Scan;

/// Splits one piece of text.
type Stage = fn(Scan<'_>, &mut PieceEnds<'_>);

/// Passes the ends of a stage's pieces on as they are found, so that no list of them takes memory.
pub(crate) struct PieceEnds<'a> {
    base: usize,
    last: usize,
    /// Once it is set, scanners read an empty text, and their ends are meaningless.
    cancelled: &'a AtomicBool,
    /// Receives the end of each piece in the whole text.
    on_end: &'a mut dyn FnMut(usize),
}

impl PieceEnds<'_> {
    /// Ends a piece at `end`, relative to the start of the stage's text. Ignores empty pieces.
    #[inline]
    fn cut(&mut self, end: usize) {
        if end > self.last && !is_set(self.cancelled) {
            self.last = end;
            (self.on_end)(self.base + end);
        }
    }

    /// Adds a match as a piece. The gap before it becomes a piece, too.
    #[inline]
    fn piece(&mut self, start: usize, end: usize) {
        self.cut(start);
        self.cut(end);
    }
}

/// Expressions of one or more pre-tokenizers.
#[derive(Debug)]
pub(crate) struct PatternSet {
    /// Number in llama.cpp's list, for tests.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the tests pair sets with expressions by it")
    )]
    number: u8,
    stages: &'static [Stage],
    original: &'static [Stage],
}

impl PatternSet {
    const fn new(number: u8, stages: &'static [Stage]) -> PatternSet {
        PatternSet { number, stages, original: stages }
    }

    /// Calls `on_end` with the end of each piece of `text`, ascending. The last one is the length
    /// of the text, unless `cancelled` is set in between.
    pub(crate) fn split(
        &self,
        text: &str,
        original: bool,
        cancelled: &AtomicBool,
        on_end: &mut dyn FnMut(usize),
    ) {
        let stages = if original { self.original } else { self.stages };
        if !text.is_empty() {
            split_piece(stages, Scan::new(text, cancelled), 0, text.len(), on_end);
        }
    }

    /// Whether the pieces are lines, whatever other characters the text contains.
    #[cfg(test)]
    pub(crate) fn is_lines(&self) -> bool {
        self.number == GEMMA4.number
    }
}

/// Splits the piece from `start` to `end` by the first stage, and each of its pieces by the others.
fn split_piece(
    stages: &[Stage],
    scan: Scan<'_>,
    start: usize,
    end: usize,
    on_end: &mut dyn FnMut(usize),
) {
    let Some((stage, others)) = stages.split_first() else { return on_end(end) };
    let mut begin = start;
    let mut on_piece_end = |end| {
        split_piece(others, scan, begin, end, on_end);
        begin = end;
    };
    let cancelled = scan.cancelled();
    let mut pieces = PieceEnds { base: start, last: 0, cancelled, on_end: &mut on_piece_end };
    stage(scan.part(start, end), &mut pieces);
    pieces.cut(end - start);
}

/// A pre-tokenizer by its names in files, with the options that llama.cpp ties to the name.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    pub(crate) names: &'static [&'static str],
    pub(crate) set: &'static PatternSet,
    /// A word that is a token is not split and merged.
    pub(crate) ignore_merges: bool,
    /// Default of `add_bos_token`.
    pub(crate) add_bos: bool,
    /// Default of `add_sep_token`.
    pub(crate) add_sep: bool,
    /// Whether detokenization removes spaces before punctuation.
    pub(crate) clean_spaces: bool,
    /// Whether tokens are stored in GPT-2's byte alphabet.
    pub(crate) byte_encode: bool,
    /// Whether spaces become U+2581.
    pub(crate) escape_spaces: bool,
    /// Whether there is no default BOS token.
    pub(crate) no_bos: bool,
    /// Gemma 4: always adds BOS, and takes a word of line ends that is a token without merges.
    pub(crate) gemma4: bool,
}

const fn pre(names: &'static [&'static str], set: &'static PatternSet) -> PreTokenizer {
    PreTokenizer {
        names,
        set,
        ignore_merges: false,
        add_bos: false,
        add_sep: false,
        clean_spaces: true,
        byte_encode: true,
        escape_spaces: false,
        no_bos: false,
        gemma4: false,
    }
}

const fn pre_keeping_spaces(
    names: &'static [&'static str],
    set: &'static PatternSet,
) -> PreTokenizer {
    PreTokenizer { clean_spaces: false, ..pre(names, set) }
}

/// Finds a pre-tokenizer by name.
pub(crate) fn find(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

/// All names, for the error about an unknown name.
pub(crate) fn known() -> Vec<&'static str> {
    let mut names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect();
    names.sort_unstable();
    names
}

static LLAMA3: PatternSet = PatternSet::new(1, &[words::llama3]);
static JAIS2: PatternSet = PatternSet::new(2, &[words::jais2]);
static DEEPSEEK_LLM: PatternSet = PatternSet {
    original: &[
        runs::each_newline,
        deepseek::llm_letters,
        deepseek::llm_punctuation_original,
        runs::trailing_space,
        deepseek::wide_cjk_original,
        runs::numbers,
    ],
    ..PatternSet::new(
        3,
        &[
            runs::each_newline,
            deepseek::llm_letters,
            deepseek::llm_punctuation,
            runs::trailing_space,
            deepseek::wide_cjk,
            runs::numbers,
        ],
    )
};
static DEEPSEEK3: PatternSet =
    PatternSet::new(4, &[runs::numbers_by_three, deepseek::cjk_and_kana, deepseek::v3_words]);
static SPARK: PatternSet = PatternSet::new(
    5,
    &[runs::numbers_by_three, deepseek::cjk_and_kana, deepseek::spark_words, runs::each_number],
);
static YOUTU: PatternSet = PatternSet {
    original: &[deepseek::youtu_scripts, cased::youtu_original],
    ..PatternSet::new(6, &[deepseek::youtu_scripts, cased::youtu])
};
static DEEPSEEK_CODER: PatternSet = PatternSet {
    original: &[
        runs::each_newline,
        deepseek::coder_letters,
        deepseek::coder_punctuation,
        deepseek::wide_cjk_original,
        runs::each_number,
    ],
    ..PatternSet::new(
        7,
        &[
            runs::each_newline,
            deepseek::coder_letters,
            deepseek::coder_punctuation,
            deepseek::wide_cjk,
            runs::each_number,
        ],
    )
};
static FALCON: PatternSet =
    PatternSet::new(8, &[runs::falcon_punctuation, words::gpt2, runs::three_digits]);
static STARCODER: PatternSet = PatternSet::new(9, &[runs::each_number, words::gpt2]);
static GPT2: PatternSet = PatternSet::new(10, &[words::gpt2]);
static QWEN2: PatternSet = PatternSet::new(11, &[words::qwen2]);
static QWEN35: PatternSet = PatternSet::new(12, &[words::qwen35]);
static BLOOM: PatternSet = PatternSet::new(13, &[runs::bloom]);
static VIKING: PatternSet = PatternSet::new(14, &[runs::bloom, runs::each_number]);
static TEKKEN: PatternSet =
    PatternSet { original: &[cased::tekken_original], ..PatternSet::new(15, &[cased::tekken]) };
static CHAMELEON: PatternSet = PatternSet::new(
    16,
    &[
        runs::sentinels,
        runs::image_codes,
        runs::tabs_and_blanks,
        runs::each_number,
        runs::each_punctuation,
        words::gpt2,
    ],
);
static GPT4O: PatternSet =
    PatternSet { original: &[cased::gpt4o_original], ..PatternSet::new(17, &[cased::gpt4o]) };
static GRANITE_MULTI: PatternSet = PatternSet {
    original: &[cased::gpt4o_original],
    ..PatternSet::new(18, &[cased::granite_multilingual])
};
static TINY_AYA: PatternSet = PatternSet {
    original: &[runs::numbers_by_three_from_the_right, cased::gpt4o_original],
    ..PatternSet::new(19, &[runs::numbers_by_three_from_the_right, cased::tiny_aya])
};
static KIMI: PatternSet =
    PatternSet { original: &[cased::kimi_k2_original], ..PatternSet::new(20, &[cased::kimi_k2]) };
static SUPERBPE: PatternSet =
    PatternSet::new(21, &[runs::numbers, runs::digits_by_three_from_the_right]);
static BAILING: PatternSet = PatternSet::new(22, &[words::qwen2]);
static SEED_CODER: PatternSet = PatternSet::new(23, &[words::seed_coder]);
static UFAKZEKA: PatternSet = PatternSet::new(24, &[words::ufakzeka]);
static AFMOE: PatternSet = PatternSet::new(
    25,
    &[runs::numbers_by_three_from_the_right, deepseek::afmoe_scripts, deepseek::v3_words],
);
static LAGUNA: PatternSet = PatternSet::new(26, &[runs::lines, words::qwen2]);
static EXAONE_MOE: PatternSet = PatternSet::new(27, &[words::exaone_moe]);
static GEMMA4: PatternSet = PatternSet::new(28, &[runs::lines]);
static MINICPM5: PatternSet = PatternSet::new(29, &[runs::numbers_by_three, words::minicpm5]);
static WHITESPACE: PatternSet = PatternSet::new(30, &[runs::not_space]);
static DEFAULT: PatternSet = PatternSet::new(
    31,
    &[runs::default_punctuation, words::gpt2, runs::numbers, runs::three_digits],
);

static PRE_TOKENIZERS: &[PreTokenizer] = &[
    pre(&["default"], &DEFAULT),
    PreTokenizer { ignore_merges: true, ..pre(&["minicpm5"], &MINICPM5) },
    PreTokenizer {
        ignore_merges: true,
        add_bos: true,
        ..pre(
            &[
                "llama3",
                "llama-v3",
                "llama-bpe",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &LLAMA3,
        )
    },
    pre_keeping_spaces(&["deepseek-llm"], &DEEPSEEK_LLM),
    pre_keeping_spaces(&["deepseek-coder"], &DEEPSEEK_CODER),
    pre_keeping_spaces(&["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], &DEEPSEEK3),
    pre_keeping_spaces(&["spark2_5"], &SPARK),
    PreTokenizer { ignore_merges: true, ..pre_keeping_spaces(&["youtu"], &YOUTU) },
    pre(&["falcon"], &FALCON),
    pre(&["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"], &STARCODER),
    pre_keeping_spaces(&["command-r", "smollm"], &STARCODER),
    pre(
        &[
            "mpt",
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "olmo",
            "jais",
            "exaone4",
        ],
        &GPT2,
    ),
    PreTokenizer { add_sep: true, ..pre(&["jina-v1-en", "jina-v2-code", "roberta-bpe"], &GPT2) },
    pre_keeping_spaces(&["trillion", "granite-docling"], &GPT2),
    pre(&["jais-2"], &JAIS2),
    PreTokenizer {
        byte_encode: false,
        escape_spaces: true,
        gemma4: true,
        ..pre(&["gemma4", "granite-embed-multi-311m"], &GEMMA4)
    },
    PreTokenizer {
        byte_encode: false,
        escape_spaces: true,
        ..pre_keeping_spaces(&["sarvam-moe"], &GEMMA4)
    },
    PreTokenizer { byte_encode: false, ..pre(&["whitespace"], &WHITESPACE) },
    pre_keeping_spaces(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "grok-2", "solar-open"],
        &QWEN2,
    ),
    pre(&["stablelm2", "megrez"], &QWEN2),
    pre_keeping_spaces(&["qwen35"], &QWEN35),
    pre(&["dbrx", "smaug-bpe"], &LLAMA3),
    PreTokenizer { no_bos: true, ..pre(&["chatglm-bpe"], &LLAMA3) },
    PreTokenizer { no_bos: true, ignore_merges: true, ..pre(&["glm4", "glm5"], &LLAMA3) },
    pre_keeping_spaces(&["poro-chat"], &BLOOM),
    pre(&["bloom", "gpt3-finnish"], &BLOOM),
    pre_keeping_spaces(&["viking"], &VIKING),
    PreTokenizer { ignore_merges: true, add_bos: true, ..pre_keeping_spaces(&["tekken"], &TEKKEN) },
    PreTokenizer { add_bos: true, ..pre_keeping_spaces(&["chameleon"], &CHAMELEON) },
    pre_keeping_spaces(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &GPT4O),
    PreTokenizer {
        ignore_merges: true,
        ..pre_keeping_spaces(&["granite-embed-multi-97m"], &GRANITE_MULTI)
    },
    pre_keeping_spaces(&["tiny_aya", "cohere2moe"], &TINY_AYA),
    pre_keeping_spaces(&["superbpe"], &SUPERBPE),
    pre_keeping_spaces(&["bailingmoe", "bailingmoe2", "llada-moe"], &BAILING),
    pre_keeping_spaces(&["seed-coder"], &SEED_CODER),
    pre_keeping_spaces(&["kimi-k2"], &KIMI),
    pre_keeping_spaces(&["ufakzeka"], &UFAKZEKA),
    pre_keeping_spaces(&["afmoe"], &AFMOE),
    pre_keeping_spaces(&["laguna"], &LAGUNA),
    pre(&["exaone-moe"], &EXAONE_MOE),
];
