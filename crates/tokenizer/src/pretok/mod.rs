//! Pre-tokenizers: how text is cut into the words within which BPE merges.
//!
//! A set is a list of stages, each written by hand for one regular expression (quoted above it) and applied to the
//! pieces that the stage before left: what it matches becomes a piece, and so does every gap. Look-ahead ends with the
//! piece. All take time linear in the text. The meanings of the expressions are llama.cpp's; where the model's
//! publisher meant something else (letter case outside ASCII, blanks within ranges) the original is in `original`.
//!
//! The tests compare each set with its expressions in a general engine.

mod cased;
mod deepseek;
#[cfg(test)]
mod oracle;
mod runs;
mod words;

use crate::unicode::Scan;

/// Cuts one piece of text.
type Stage = fn(Scan<'_>, &mut Cuts<'_>);

/// Where a stage puts the ends of its pieces.
pub(crate) struct Cuts<'a> {
    base: usize,
    last: usize,
    ends: &'a mut Vec<usize>,
}

impl Cuts<'_> {
    /// Ends a piece at `end`, counted from the start of the text that the stage got; an empty one is none.
    #[inline]
    fn cut(&mut self, end: usize) {
        if end > self.last {
            self.ends.push(self.base + end);
            self.last = end;
        }
    }

    /// Isolates a match; what lies between it and the piece before becomes a piece too.
    #[inline]
    fn piece(&mut self, start: usize, end: usize) {
        self.cut(start);
        self.cut(end);
    }
}

/// The expressions of one or more pre-tokenizers.
#[derive(Debug)]
pub(crate) struct Set {
    /// Its number in the list of the documentation, for messages and tests.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "the tests pair sets with expressions by it")
    )]
    number: u8,
    stages: &'static [Stage],
    original: &'static [Stage],
}

impl Set {
    const fn new(number: u8, stages: &'static [Stage]) -> Set {
        Set { number, stages, original: stages }
    }

    /// Appends the ends of the pieces of `text` to `ends`, ascending; the last one is the length of the text.
    pub(crate) fn split(&self, text: &str, original: bool, ends: &mut Vec<usize>) {
        let scan = Scan::new(text);
        let stages = if original { self.original } else { self.stages };
        let mut before = Vec::new();
        ends.clear();
        if !text.is_empty() {
            ends.push(text.len());
        }
        for stage in stages {
            std::mem::swap(&mut before, ends);
            ends.clear();
            let mut start = 0;
            for &end in &before {
                let mut cuts = Cuts { base: start, last: 0, ends };
                stage(scan.part(start, end), &mut cuts);
                cuts.cut(end - start);
                start = end;
            }
        }
    }
}

/// A pre-tokenizer by its name in the file, with what else llama.cpp ties to the name.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    pub(crate) names: &'static [&'static str],
    pub(crate) set: &'static Set,
    /// A word that is a token needs no merges.
    pub(crate) ignore_merges: bool,
    /// The default of `add_bos_token`.
    pub(crate) add_bos: bool,
    /// The default of `add_sep_token`.
    pub(crate) add_sep: bool,
    /// Detokenized text loses blanks before punctuation.
    pub(crate) clean_spaces: bool,
    /// Bytes are written in GPT-2's alphabet.
    pub(crate) byte_encode: bool,
    /// Blanks become U+2581.
    pub(crate) escape_spaces: bool,
    /// There is no default BOS token.
    pub(crate) no_bos: bool,
    /// BOS is added whatever the file says, and a word of line ends that is a token needs no merges.
    pub(crate) gemma4: bool,
}

const fn pre(names: &'static [&'static str], set: &'static Set) -> PreTokenizer {
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

const fn raw(names: &'static [&'static str], set: &'static Set) -> PreTokenizer {
    PreTokenizer { clean_spaces: false, ..pre(names, set) }
}

/// The row of a name.
pub(crate) fn find(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

/// All names, for the error about one that is not among them.
pub(crate) fn known() -> Vec<&'static str> {
    let mut names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).copied().collect();
    names.sort_unstable();
    names
}

static LLAMA3: Set = Set::new(1, &[words::llama3]);
static JAIS2: Set = Set::new(2, &[words::jais2]);
static DEEPSEEK_LLM: Set = Set {
    original: &[
        runs::each_newline,
        deepseek::llm_letters,
        deepseek::llm_punctuation_original,
        runs::trailing_space,
        deepseek::wide_cjk_original,
        runs::numbers,
    ],
    ..Set::new(
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
static DEEPSEEK3: Set =
    Set::new(4, &[runs::numbers_by_three, deepseek::cjk_and_kana, deepseek::v3_words]);
static SPARK: Set = Set::new(
    5,
    &[runs::numbers_by_three, deepseek::cjk_and_kana, deepseek::spark_words, runs::each_number],
);
static YOUTU: Set = Set {
    original: &[deepseek::youtu_scripts, cased::youtu_original],
    ..Set::new(6, &[deepseek::youtu_scripts, cased::youtu])
};
static DEEPSEEK_CODER: Set = Set {
    original: &[
        runs::each_newline,
        deepseek::coder_letters,
        deepseek::coder_punctuation,
        deepseek::wide_cjk_original,
        runs::each_number,
    ],
    ..Set::new(
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
static FALCON: Set = Set::new(8, &[runs::falcon_punctuation, words::gpt2, runs::three_digits]);
static STARCODER: Set = Set::new(9, &[runs::each_number, words::gpt2]);
static GPT2: Set = Set::new(10, &[words::gpt2]);
static QWEN2: Set = Set::new(11, &[words::qwen2]);
static QWEN35: Set = Set::new(12, &[words::qwen35]);
static BLOOM: Set = Set::new(13, &[runs::bloom]);
static VIKING: Set = Set::new(14, &[runs::bloom, runs::each_number]);
static TEKKEN: Set = Set { original: &[cased::tekken_original], ..Set::new(15, &[cased::tekken]) };
static CHAMELEON: Set = Set::new(
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
static GPT4O: Set = Set { original: &[cased::gpt4o_original], ..Set::new(17, &[cased::gpt4o]) };
static GRANITE_MULTI: Set =
    Set { original: &[cased::gpt4o_original], ..Set::new(18, &[cased::granite_multilingual]) };
static TINY_AYA: Set = Set {
    original: &[runs::numbers_by_three_from_the_right, cased::gpt4o_original],
    ..Set::new(19, &[runs::numbers_by_three_from_the_right, cased::tiny_aya])
};
static KIMI: Set = Set { original: &[cased::kimi_k2_original], ..Set::new(20, &[cased::kimi_k2]) };
static SUPERBPE: Set = Set::new(21, &[runs::numbers, runs::digits_by_three_from_the_right]);
static BAILING: Set = Set::new(22, &[words::qwen2]);
static SEED_CODER: Set = Set::new(23, &[words::seed_coder]);
static UFAKZEKA: Set = Set::new(24, &[words::ufakzeka]);
static AFMOE: Set = Set::new(
    25,
    &[runs::numbers_by_three_from_the_right, deepseek::afmoe_scripts, deepseek::v3_words],
);
static LAGUNA: Set = Set::new(26, &[runs::lines, words::qwen2]);
static EXAONE_MOE: Set = Set::new(27, &[words::exaone_moe]);
static GEMMA4: Set = Set::new(28, &[runs::lines]);
static MINICPM5: Set = Set::new(29, &[runs::numbers_by_three, words::minicpm5]);
static WHITESPACE: Set = Set::new(30, &[runs::not_space]);
static DEFAULT: Set =
    Set::new(31, &[runs::default_punctuation, words::gpt2, runs::numbers, runs::three_digits]);

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
    raw(&["deepseek-llm"], &DEEPSEEK_LLM),
    raw(&["deepseek-coder"], &DEEPSEEK_CODER),
    raw(&["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], &DEEPSEEK3),
    raw(&["spark2_5"], &SPARK),
    PreTokenizer { ignore_merges: true, ..raw(&["youtu"], &YOUTU) },
    pre(&["falcon"], &FALCON),
    pre(&["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"], &STARCODER),
    raw(&["command-r", "smollm"], &STARCODER),
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
    raw(&["trillion", "granite-docling"], &GPT2),
    pre(&["jais-2"], &JAIS2),
    PreTokenizer {
        byte_encode: false,
        escape_spaces: true,
        gemma4: true,
        ..pre(&["gemma4", "granite-embed-multi-311m"], &GEMMA4)
    },
    PreTokenizer { byte_encode: false, escape_spaces: true, ..raw(&["sarvam-moe"], &GEMMA4) },
    PreTokenizer { byte_encode: false, ..pre(&["whitespace"], &WHITESPACE) },
    raw(
        &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "grok-2", "solar-open"],
        &QWEN2,
    ),
    pre(&["stablelm2", "megrez"], &QWEN2),
    raw(&["qwen35"], &QWEN35),
    pre(&["dbrx", "smaug-bpe"], &LLAMA3),
    PreTokenizer { no_bos: true, ..pre(&["chatglm-bpe"], &LLAMA3) },
    PreTokenizer { no_bos: true, ignore_merges: true, ..pre(&["glm4", "glm5"], &LLAMA3) },
    raw(&["poro-chat"], &BLOOM),
    pre(&["bloom", "gpt3-finnish"], &BLOOM),
    raw(&["viking"], &VIKING),
    PreTokenizer { ignore_merges: true, add_bos: true, ..raw(&["tekken"], &TEKKEN) },
    PreTokenizer { add_bos: true, ..raw(&["chameleon"], &CHAMELEON) },
    raw(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &GPT4O),
    PreTokenizer { ignore_merges: true, ..raw(&["granite-embed-multi-97m"], &GRANITE_MULTI) },
    raw(&["tiny_aya", "cohere2moe"], &TINY_AYA),
    raw(&["superbpe"], &SUPERBPE),
    raw(&["bailingmoe", "bailingmoe2", "llada-moe"], &BAILING),
    raw(&["seed-coder"], &SEED_CODER),
    raw(&["kimi-k2"], &KIMI),
    raw(&["ufakzeka"], &UFAKZEKA),
    raw(&["afmoe"], &AFMOE),
    raw(&["laguna"], &LAGUNA),
    pre(&["exaone-moe"], &EXAONE_MOE),
];
