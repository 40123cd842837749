//! Special tokens: start and end of text, end of turn, fill-in-the-middle. The file names some.
//! Others are recognized by their text.

use puna_gguf::Metadata;

use crate::vocab::{
    CONTROL, LSTRIP, MARKUP, NORMAL, RSTRIP, TokenKind, UNKNOWN, UNUSED, USER_DEFINED, Vocab,
};

/// Ids of special tokens.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct SpecialTokens {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) eot: Option<u32>,
    pub(crate) eom: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) sep: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) cls: Option<u32>,
    pub(crate) mask: Option<u32>,
    pub(crate) fim_pre: Option<u32>,
    pub(crate) fim_suf: Option<u32>,
    pub(crate) fim_mid: Option<u32>,
    pub(crate) fim_pad: Option<u32>,
    pub(crate) fim_rep: Option<u32>,
    pub(crate) fim_sep: Option<u32>,
    /// Tokens that end generation, ascending.
    pub(crate) eog: Vec<u32>,
}

// Texts of each role. The first one found wins.
const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PRE: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];

/// Texts that end generation regardless of the file. `</s>` does so only if the file makes it a
/// control token or its EOS: in Gemma's and Qwen's vocabularies it is HTML.
const EOG: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

impl SpecialTokens {
    /// Replaces defaults by the file's ids, finds missing roles by text, and collects the tokens
    /// that end generation. Tokens found by text become control tokens.
    pub(crate) fn complete(&mut self, meta: &Metadata, vocab: &mut Vocab) {
        self.read(meta, vocab);
        self.eog = listed_ends(meta, vocab);
        for (role, texts) in [
            (&mut self.eot, EOT),
            (&mut self.eom, EOM),
            (&mut self.fim_pre, FIM_PRE),
            (&mut self.fim_suf, FIM_SUF),
            (&mut self.fim_mid, FIM_MID),
            (&mut self.fim_pad, FIM_PAD),
            (&mut self.fim_rep, FIM_REP),
            (&mut self.fim_sep, FIM_SEP),
        ] {
            if role.is_none() {
                *role = texts.iter().find_map(|text| vocab.id(text.as_bytes()));
                role.iter().for_each(|&id| vocab.kinds[id as usize] |= CONTROL);
            }
        }
        for id in 0..vocab.len() as u32 {
            if vocab.is(id, CONTROL) && vocab.text(id).windows(6).any(|part| part == b"unused") {
                vocab.kinds[id as usize] |= UNUSED;
            }
        }
        self.find_end_tokens(vocab);
    }

    /// Reads the file's ids. Ids and defaults beyond the vocabulary count as absent.
    fn read(&mut self, meta: &Metadata, vocab: &Vocab) {
        let roles: [(&str, &mut Option<u32>); 15] = [
            ("bos", &mut self.bos),
            ("eos", &mut self.eos),
            ("eot", &mut self.eot),
            ("eom", &mut self.eom),
            ("unknown", &mut self.unk),
            ("seperator", &mut self.sep),
            ("padding", &mut self.pad),
            ("cls", &mut self.cls),
            ("mask", &mut self.mask),
            ("fim_pre", &mut self.fim_pre),
            ("fim_suf", &mut self.fim_suf),
            ("fim_mid", &mut self.fim_mid),
            ("fim_pad", &mut self.fim_pad),
            ("fim_rep", &mut self.fim_rep),
            ("fim_sep", &mut self.fim_sep),
        ];
        for (name, role) in roles {
            read_role(meta, vocab, name, role);
        }
        // Older keys, which take precedence over `fim_…`.
        read_role(meta, vocab, "prefix", &mut self.fim_pre);
        read_role(meta, vocab, "suffix", &mut self.fim_suf);
        read_role(meta, vocab, "middle", &mut self.fim_mid);
    }

    fn find_end_tokens(&mut self, vocab: &mut Vocab) {
        self.eog.extend([self.fim_pad, self.fim_rep, self.fim_sep].into_iter().flatten());
        for text in EOG {
            let Some(id) = vocab.id(text.as_bytes()) else { continue };
            if *text == "</s>" && !vocab.is(id, CONTROL) && self.eos != Some(id) {
                continue;
            }
            vocab.kinds[id as usize] |= CONTROL;
            self.eog.push(id);
        }
        // Parsers read Harmony's markup, so it is visible.
        for text in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
            if let Some(id) = vocab.id(text.as_bytes()) {
                vocab.kinds[id as usize] = USER_DEFINED | MARKUP;
            }
        }
        self.eog.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        self.remove_false_ends(vocab);
        self.eog.sort_unstable();
        self.eog.dedup();
    }

    /// Removes tokens that have another meaning in some vocabularies.
    fn remove_false_ends(&mut self, vocab: &mut Vocab) {
        let ends = |text: &str| vocab.id(text.as_bytes()).filter(|id| self.eog.contains(id));
        let calls = ends("<|call|>").or(ends("<|calls|>")).is_some();
        let continues = calls && (ends("<|return|>").is_some() || ends("<|flush|>").is_some());
        let end = ends("<|end|>").filter(|_| continues);
        let html = ends("</s>")
            .filter(|_| ends("<|tool_response>").is_some() || ends("<|plamo:eos|>").is_some());
        for (id, kind) in [(end, USER_DEFINED | MARKUP), (html, NORMAL)] {
            if let Some(id) = id {
                self.eog.retain(|&other| other != id);
                vocab.kinds[id as usize] = kind;
            }
        }
    }
}

fn read_role(meta: &Metadata, vocab: &Vocab, name: &str, role: &mut Option<u32>) {
    let in_range = |id: u32| (id as usize) < vocab.len();
    *role = role.filter(|&id| in_range(id));
    let value = meta.get(&format!("tokenizer.ggml.{name}_token_id"));
    let id = value.and_then(|value| value.as_int()).and_then(|id| u32::try_from(id).ok());
    if let Some(id) = id.filter(|&id| in_range(id)) {
        *role = Some(id);
    }
}

/// End tokens that Ollama's converter copies from the model's configuration. llama.cpp does not
/// read them.
fn listed_ends(meta: &Metadata, vocab: &Vocab) -> Vec<u32> {
    let listed =
        meta.get("tokenizer.ggml.eos_token_ids").and_then(|value| value.as_array()?.ints());
    let ids = listed.into_iter().flatten().filter_map(|id| u32::try_from(id).ok());
    ids.filter(|&id| (id as usize) < vocab.len()).collect()
}

/// Marks tokens that take adjacent white space. Files do not record this, so models are recognized
/// by name.
pub(crate) fn mark_whitespace_stripping(meta: &Metadata, pre: &str, vocab: &mut Vocab) {
    let text = |key: &str| meta.get(key).and_then(|value| value.as_str()).unwrap_or("");
    let name = text("general.name").to_lowercase();
    let arch = text("general.architecture");
    let any = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let mut mark = |token: &str, bit: TokenKind| {
        if let Some(id) = vocab.id(token.as_bytes()) {
            vocab.kinds[id as usize] |= bit;
        }
    };
    if any(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || any(arch, &["nomic-bert-moe", "jina-bert-v3"])
    {
        mark("<mask>", LSTRIP);
    } else if any(&name, &["phi-3", "phi3"]) {
        for id in 0..vocab.len() as u32 {
            let keeps = [&b"<unk>"[..], b"<s>", b"<|endoftext|>"].contains(&vocab.text(id));
            let special = vocab.is(id, CONTROL | USER_DEFINED | UNKNOWN);
            if !keeps && (special || vocab.text(id) == b"</s>") {
                vocab.kinds[id as usize] |= RSTRIP;
            }
        }
    } else if name.contains("modern-bert") {
        mark("[MASK]", LSTRIP);
    }
}
