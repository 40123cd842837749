//! Name of a pre-tokenizer. GGUF files name the rules that split a text into words;
//! `tokenizer.json` has them as regular expressions. So this module brings expressions to one
//! spelling and looks them up. Unknown rules are rejected: a model whose text is split differently
//! than in training answers worse, without a visible reason.

use puna_gguf::escape_for_message;
use serde_json::Value;

/// GPT-2's expression, which the step `ByteLevel` applies unless `use_regex` is false.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const PUNCTUATION: &str = "punctuation";
/// Expression of Llama 3 and of OpenAI's cl100k.
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)";
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";
const DEEPSEEK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"##;
const DEEPSEEK_HAN: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
/// Han characters, and further ranges that a mistake in the expression includes.
const DEEPSEEK_OLD_HAN: &str = r"[一-龥ࠀ-一가-퟿]+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
/// Digits in groups of three from the right.
const DIGIT_TRIPLES: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

/// Expressions, value of `ignore_merges` (if it matters), and name of the pre-tokenizer.
const PRETOKENIZERS: &[(&[&str], Option<bool>, &str)] = &[
    (&[CL100K], Some(true), "llama-bpe"),
    (&[CL100K], Some(false), "dbrx"),
    (&[r"\p{N}{1,3}", DEEPSEEK_HAN, DEEPSEEK_WORDS], None, "deepseek-v3"),
    (&[QWEN2], None, "qwen2"),
    (&[QWEN35], None, "qwen35"),
    (&[O200K], None, "gpt-4o"),
    (&[TEKKEN], None, "tekken"),
    (&[SEED], None, "seed-coder"),
    (&[BAILING], None, "bailingmoe"),
    (&[GPT2], None, "gpt-2"),
    (&[DIGIT, GPT2], None, "smollm"),
    (&[PUNCTUATION, GPT2, DIGITS, "[0-9][0-9][0-9]"], None, "default"),
    (&[PUNCTUATION, GPT2, "[0-9][0-9][0-9]"], None, "falcon"),
    (&[BLOOM], None, "bloom"),
    (&[BLOOM, DIGIT], None, "viking"),
    (&[DIGITS, CL100K], Some(true), "minicpm5"),
    (&[CL100K, DIGIT], None, "llama-bpe"),
    (&["[^\\n]+|[\\n]+", QWEN2], None, "laguna"),
    (
        &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_OLD_HAN, DIGIT],
        None,
        "deepseek-llm",
    ),
    (
        &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_OLD_HAN, DIGITS],
        None,
        "deepseek-llm",
    ),
    (&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_OLD_HAN, DIGIT], None, "deepseek-coder"),
    (&[r"\p{N}{1,3}", DEEPSEEK_HAN, SPARK, DIGIT], None, "spark2_5"),
    (&[JAIS2], None, "jais-2"),
    (&[EXAONE_MOE], None, "exaone-moe"),
    (&[UFAKZEKA], None, "ufakzeka"),
    (&[DIGIT_TRIPLES, O200K], None, "tiny_aya"),
    (&[DIGITS, r"(?=(\d{3})+(?!\d))"], None, "superbpe"),
];

/// Name of the pre-tokenizer of a `tokenizer.json` with byte-level merges.
pub(super) fn name_of(json: &Value) -> Result<&'static str, String> {
    let mut patterns = Vec::new();
    if let Some(step) = json.get("pre_tokenizer").filter(|step| !step.is_null()) {
        collect_patterns(step, &mut patterns)?;
    }
    let normalized: Vec<String> =
        patterns.iter().map(|pattern| normalize_pattern(pattern)).collect();
    let ignores_merges =
        json.get("model").and_then(|model| model.get("ignore_merges")).and_then(Value::as_bool);
    let ignores_merges = ignores_merges.unwrap_or(false);
    let known = PRETOKENIZERS.iter().find(|(patterns, ignores, _)| {
        ignores.is_none_or(|ignores| ignores == ignores_merges)
            && patterns
                .iter()
                .map(|pattern| normalize_pattern(pattern))
                .eq(normalized.iter().cloned())
    });
    known.map(|known| known.2).ok_or_else(|| {
        let patterns = patterns.iter().map(|pattern| format!("`{}`", escape_for_message(pattern))).collect::<Vec<_>>().join(", then ");
        let patterns = if patterns.is_empty() { "without patterns".to_owned() } else { patterns };
        format!(
            "unsupported pre-tokenizer {patterns}; if llama.cpp can convert the model, create it from \
             the GGUF file that llama.cpp writes"
        )
    })
}

/// Collects the expressions of a step and of the steps inside it.
fn collect_patterns(step: &Value, patterns: &mut Vec<String>) -> Result<(), String> {
    let flag = |key: &str| step.get(key).and_then(Value::as_bool);
    match step.get("type").and_then(Value::as_str).unwrap_or_default() {
        "Sequence" => {
            for step in step.get("pretokenizers").and_then(Value::as_array).into_iter().flatten() {
                collect_patterns(step, patterns)?;
            }
        }
        "ByteLevel" if flag("use_regex") == Some(false) => {}
        "ByteLevel" => patterns.push(GPT2.to_owned()),
        "Digits" if flag("individual_digits") == Some(true) => patterns.push(DIGIT.to_owned()),
        "Digits" => patterns.push(DIGITS.to_owned()),
        "Punctuation" => patterns.push(PUNCTUATION.to_owned()),
        "Split" => {
            let pattern = step.get("pattern").ok_or("a Split step has no pattern")?;
            let regex = pattern.get("Regex").and_then(Value::as_str).map(str::to_owned);
            let text =
                || pattern.get("String").and_then(Value::as_str).map(|text| format!("text {text}"));
            patterns.push(regex.or_else(text).ok_or("a Split step has an unsupported pattern")?);
        }
        other => patterns.push(format!("step {other}")),
    }
    Ok(())
}

/// Brings equivalent expressions to one spelling.
fn normalize_pattern(pattern: &str) -> String {
    let pattern = pattern
        .replace(
            "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        )
        .replace("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
        .replace("(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
        // Possessive quantifiers only change the speed here: no following part matches what they
        // consume.
        .replace("?+\\p{L}", "?\\p{L}")
        .replace("]++[", "]+[")
        .replace("\\p{N}{1}", "\\p{N}")
        .replace("[0-9]{3}", "[0-9][0-9][0-9]");
    // Unmatched text is split off as it is, so a final alternative for spaces is redundant.
    let pattern = pattern.strip_suffix("|\\s+").map_or(pattern.clone(), str::to_owned);
    pattern.strip_suffix("|\\s").map_or(pattern.clone(), str::to_owned)
}

/// Whether a space is added before the first word, for vocabularies with scores.
pub(super) fn adds_space_prefix(json: &Value) -> bool {
    let normalizer = json.get("normalizer").unwrap_or(&Value::Null);
    let list = normalizer.get("normalizers").and_then(Value::as_array);
    let prepends = |step: &Value| step.get("type").is_some_and(|t| t == "Prepend");
    if list.map_or(prepends(normalizer), |list| list.iter().any(prepends)) {
        return true;
    }
    let step = json.get("pre_tokenizer").unwrap_or(&Value::Null);
    let list = step.get("pretokenizers").and_then(Value::as_array);
    let is = |step: &Value| step.get("type").is_some_and(|t| t == "Metaspace");
    let found = list.map_or(Some(step).filter(|s| is(s)), |list| list.iter().find(|s| is(s)));
    found.is_some_and(|step| match step.get("prepend_scheme").and_then(Value::as_str) {
        Some(scheme) => scheme != "never",
        None => step.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn split(expression: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false})
    }

    fn bytes(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": use_regex})
    }

    fn named(steps: Vec<Value>, ignore_merges: bool) -> Result<&'static str, String> {
        let sequence = json!({"type": "Sequence", "pretokenizers": steps});
        name_of(&json!({"pre_tokenizer": sequence, "model": {"ignore_merges": ignore_merges}}))
    }

    /// Expressions as published tokenizers spell them.
    #[test]
    fn published_patterns_have_pretokenizer_names() {
        let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let qwen = llama.replace("{1,3}", "");
        let digits = json!({"type": "Digits", "individual_digits": true});
        for (steps, ignore, want) in [
            (vec![split(llama), bytes(false)], true, "llama-bpe"),
            (vec![split(llama), bytes(false)], false, "dbrx"),
            (vec![split(&qwen), bytes(false)], false, "qwen2"),
            (vec![bytes(true)], false, "gpt-2"),
            (vec![digits, bytes(true)], false, "smollm"),
            (vec![split(&format!("{O200K}|\\s+")), bytes(false)], false, "gpt-4o"),
        ] {
            assert_eq!(named(steps, ignore), Ok(want));
        }
        assert_eq!(name_of(&json!({"pre_tokenizer": bytes(true), "model": {}})), Ok("gpt-2"));
    }

    #[test]
    fn unknown_patterns_are_rejected_with_their_text() {
        let error = named(vec![split("[aeiou]+"), bytes(false)], false).unwrap_err();
        assert!(error.contains("[aeiou]+") && error.contains("llama.cpp"), "{error}");
        assert!(named(vec![], false).unwrap_err().contains("without patterns"));
    }

    #[test]
    fn space_prefix_follows_the_file() {
        assert!(adds_space_prefix(
            &json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}})
        ));
        assert!(adds_space_prefix(
            &json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}})
        ));
        assert!(!adds_space_prefix(
            &json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}})
        ));
        assert!(!adds_space_prefix(&json!({"normalizer": {"type": "Replace"}})));
    }
}
