//! Llama 3 files with incomplete tokenizer keys: without pre-tokenizer, or with the end of text
//! instead of the end of turn.

use crate::view::rules::{Condition::*, Constant::*, PublishedLayout, Rule::*};

const END_OF_TURN: u32 = 128_009;
const END_OF_TEXT: u64 = 128_001;

const PRE: &str = "tokenizer.ggml.pre";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const TEMPLATE: &str = "tokenizer.chat_template";

pub(super) const LLAMA3: PublishedLayout = PublishedLayout {
    name: "llama 3 with gaps in its tokenizer keys",
    architecture: "llama",
    markers: &[All(&[
        TokenIs(END_OF_TURN as usize, "<|eot_id|>"),
        Any(&[
            TokenIs(128_006, "<|start_header_id|>"),
            TextContains(TEMPLATE, "<|start_header_id|>"),
            TextContains(TEMPLATE, "<|eot_id|>"),
        ]),
        Any(&[NoText(PRE), KeyIs(EOS, END_OF_TEXT)]),
    ])],
    rules: &[
        If(NoText(PRE), &[Set(PRE, Str("llama-bpe"))]),
        If(Any(&[NoKey(EOS), KeyIs(EOS, END_OF_TEXT)]), &[Set(EOS, U32(END_OF_TURN))]),
        If(Any(&[NoKey(EOT), KeyIs(EOT, END_OF_TEXT)]), &[Set(EOT, U32(END_OF_TURN))]),
        Set("tokenizer.ggml.eos_token_ids", I32s(&[END_OF_TURN as i32])),
    ],
};
