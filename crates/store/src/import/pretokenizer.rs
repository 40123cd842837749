//! The name of a pre-tokenizer. GGUF files name the rules that cut a text into words, `tokenizer.json` spells them out: so
//! the rules are brought to one spelling and looked up. Rules that are not in the table are refused, since a model that
//! reads its words cut in another way than in its training answers worse, and nobody would see why.

use serde_json::Value;

/// What GPT-2 cuts by, which the step `ByteLevel` does unless it is told not to.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const PUNCTUATION: &str = "punctuation";
/// Llama 3's and OpenAI's expression of a hundred thousand words.
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
/// Han, and what an inexact range took with it.
const DEEPSEEK_OLD_HAN: &str = r"[一-龥ࠀ-一가-퟿]+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
/// Digits in threes from the right.
const THREES: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

/// The rules, whether whole words that are tokens are left alone (where it matters), and the name.
const KNOWN: &[(&[&str], Option<bool>, &str)] = &[
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
    (&[THREES, O200K], None, "tiny_aya"),
    (&[DIGITS, r"(?=(\d{3})+(?!\d))"], None, "superbpe"),
];

/// The name of the rules of a `tokenizer.json` with merges of bytes.
pub(super) fn of(json: &Value) -> Result<&'static str, String> {
    let mut rules = Vec::new();
    if let Some(step) = json.get("pre_tokenizer").filter(|step| !step.is_null()) {
        collect(step, &mut rules)?;
    }
    let spelled: Vec<String> = rules.iter().map(|rule| plain(rule)).collect();
    let whole =
        json.get("model").and_then(|model| model.get("ignore_merges")).and_then(Value::as_bool);
    let whole = whole.unwrap_or(false);
    let known = KNOWN.iter().find(|(rules, ignores, _)| {
        ignores.is_none_or(|ignores| ignores == whole)
            && rules.iter().map(|rule| plain(rule)).eq(spelled.iter().cloned())
    });
    known.map(|known| known.2).ok_or_else(|| {
        let rules = rules.iter().map(|rule| format!("`{}`", crate::name::shown(rule))).collect::<Vec<_>>().join(", then ");
        let rules = if rules.is_empty() { "nothing".to_owned() } else { rules };
        format!(
            "it cuts texts by {rules}, which no pre-tokenizer of GGUF files does; if llama.cpp can convert the model, import \
             the GGUF file that it makes"
        )
    })
}

/// The expressions of a step and the steps within it.
fn collect(step: &Value, rules: &mut Vec<String>) -> Result<(), String> {
    let flag = |key: &str| step.get(key).and_then(Value::as_bool);
    match step.get("type").and_then(Value::as_str).unwrap_or_default() {
        "Sequence" => {
            for step in step.get("pretokenizers").and_then(Value::as_array).into_iter().flatten() {
                collect(step, rules)?;
            }
        }
        "ByteLevel" if flag("use_regex") == Some(false) => {}
        "ByteLevel" => rules.push(GPT2.to_owned()),
        "Digits" if flag("individual_digits") == Some(true) => rules.push(DIGIT.to_owned()),
        "Digits" => rules.push(DIGITS.to_owned()),
        "Punctuation" => rules.push(PUNCTUATION.to_owned()),
        "Split" => {
            let pattern = step.get("pattern").ok_or("a Split without a pattern")?;
            let regex = pattern.get("Regex").and_then(Value::as_str).map(str::to_owned);
            let text =
                || pattern.get("String").and_then(Value::as_str).map(|text| format!("text {text}"));
            rules.push(regex.or_else(text).ok_or("a Split with an unknown pattern")?);
        }
        other => rules.push(format!("step {other}")),
    }
    Ok(())
}

/// One spelling of expressions that mean the same.
fn plain(rule: &str) -> String {
    let rule = rule
        .replace(
            "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        )
        .replace("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
        .replace("(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
        // Possessive forms change the speed only: what follows never begins with what they hold.
        .replace("?+\\p{L}", "?\\p{L}")
        .replace("]++[", "]+[")
        .replace("\\p{N}{1}", "\\p{N}")
        .replace("[0-9]{3}", "[0-9][0-9][0-9]");
    // What nothing else matches is cut off as it is: a last alternative of blanks says nothing new.
    let rule = rule.strip_suffix("|\\s+").map_or(rule.clone(), str::to_owned);
    rule.strip_suffix("|\\s").map_or(rule.clone(), str::to_owned)
}

/// Whether a text gets a space before its first word, in a vocabulary with scores.
pub(super) fn has_prefix(json: &Value) -> bool {
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
        of(&json!({"pre_tokenizer": sequence, "model": {"ignore_merges": ignore_merges}}))
    }

    /// Expressions as published tokenizers spell them.
    #[test]
    fn rules_of_published_tokenizers_have_their_names() {
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
        assert_eq!(of(&json!({"pre_tokenizer": bytes(true), "model": {}})), Ok("gpt-2"));
    }

    #[test]
    fn unknown_rules_are_refused_and_named() {
        let error = named(vec![split("[aeiou]+"), bytes(false)], false).unwrap_err();
        assert!(error.contains("[aeiou]+") && error.contains("llama.cpp"), "{error}");
        assert!(named(vec![], false).unwrap_err().contains("by nothing"));
    }

    #[test]
    fn a_space_comes_first_where_the_file_says_so() {
        assert!(has_prefix(
            &json!({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}})
        ));
        assert!(has_prefix(
            &json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}})
        ));
        assert!(!has_prefix(
            &json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "never"}})
        ));
        assert!(!has_prefix(&json!({"normalizer": {"type": "Replace"}})));
    }
}
