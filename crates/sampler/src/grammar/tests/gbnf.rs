//! Compares translated GBNF grammars with a direct implementation of GBNF.

use super::*;
use crate::grammar::gbnf::{self, Expr};

#[test]
fn gbnf_errors_name_their_position() {
    let cases = [
        ("", "the grammar has no rule named root"),
        ("root = \"a\"", "expecting ::= at line 1, column 6"),
        ("::= \"a\"", "expecting name at line 1, column 1"),
        ("root ::= a", "Undefined rule identifier 'a'"),
        ("root ::= \"a", "unexpected end of input"),
        ("root ::= [a", "unexpected end of input"),
        ("root ::= \"\\q\"", "unknown escape \\q at line 1, column 13"),
        ("root ::= *", "expecting preceding item to * at line 1, column 10"),
        ("root ::= (\"a\"", "expecting ')' at the end of the grammar"),
        ("root ::= \"a\" )", "expecting newline or end at line 1, column 14"),
        (
            "root ::= \"a\"{2001}",
            "number of repetitions exceeds sane defaults (at most 2000, rising) at line 1, column 13",
        ),
        ("# a\nroot ::= \"a\"{x}", "expecting integer at line 2, column 14"),
        (
            "root ::= !<a>",
            "an excluded token must be given by its id, as !<[id]>, at line 1, column 11",
        ),
        ("root ::= \"a\"*****", "more than 4 nested repetitions at line 1, column 17"),
        ("root ::= <a", "expecting a token such as <name> or <[id]> at line 1, column 10"),
    ];
    for (text, want) in cases {
        assert_eq!(gbnf::parse(text).unwrap_err(), want, "{text}");
    }
}

/// All positions where a GBNF expression that starts at `at` can end. Direct implementation,
/// without regard to speed.
fn ends(rules: &[Expr], expr: &Expr, text: &[char], at: usize, depth: usize) -> BTreeSet<usize> {
    if depth > 200 {
        return BTreeSet::new();
    }
    let one = |fits: bool| if fits { BTreeSet::from([at + 1]) } else { BTreeSet::new() };
    let go = |expr: &Expr, from: &BTreeSet<usize>| -> BTreeSet<usize> {
        from.iter().flat_map(|&at| ends(rules, expr, text, at, depth + 1)).collect()
    };
    match expr {
        Expr::Text(word) => {
            let word: Vec<char> = word.chars().collect();
            if text[at..].starts_with(&word) {
                BTreeSet::from([at + word.len()])
            } else {
                BTreeSet::new()
            }
        }
        Expr::Class { ranges, negated } => one(text
            .get(at)
            .is_some_and(|c| ranges.iter().any(|(a, b)| (a..=b).contains(&c)) != *negated)),
        Expr::Any => one(at < text.len()),
        Expr::Rule(index) => ends(rules, &rules[*index], text, at, depth + 1),
        Expr::Token(_) => BTreeSet::new(),
        Expr::Sequence(list) => {
            list.iter().fold(BTreeSet::from([at]), |from, expr| go(expr, &from))
        }
        Expr::Choice(list) => list.iter().flat_map(|expr| go(expr, &[at].into())).collect(),
        Expr::Repeat { what, min, max } => {
            let mut from = BTreeSet::from([at]);
            let mut all = if *min == 0 { from.clone() } else { BTreeSet::new() };
            for count in 1..=max.unwrap_or(text.len() as u32 + min) {
                from = go(what, &from);
                if count >= *min {
                    let before = all.len();
                    all.extend(&from);
                    if all.len() == before {
                        break;
                    }
                }
            }
            all
        }
    }
}

#[test]
fn translated_grammars_accept_what_gbnf_accepts() {
    let cases: [(&str, &[&str]); 9] = [
        ("root ::= \"yes\" | \"no\"", &["yes", "no", "ye", "yesno", ""]),
        ("root ::= ", &["", "a"]),
        (
            "root ::= [0-9]+ (\".\" [0-9]{2,3})? # a price",
            &["1", "12.50", "12.5", "12.5000", ".50", "12."],
        ),
        ("root ::= \"a\"* [ab]* \"c\"", &["c", "aac", "abbac", "aab", "abcc"]),
        (
            "root ::= item{2}\nitem ::= \"- \" [^\\r\\n\\x22]+ \"\\n\"",
            &["- a\n- b\n", "- a\n", "- \"\n- b\n"],
        ),
        (
            "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+",
            &["1", "1+2", "(1+2)*3", "((1))", "1+", "(1", "()", "1 + 2", "12+(3-4)/5"],
        ),
        (
            "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\
             object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n\
             array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\
             string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\" ws\n\
             number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws\n\
             ws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
            &[
                "{}",
                "{\"a\":1}",
                "{ \"a\": [1, 2.5e-3, \"\u{e4}\\n\"] , \"b\":{}}",
                "{\"a\":01}",
                "{\"a\"}",
                "[1]",
                "{\"a\":[1,]}",
                "{\"a\":\"x}",
                "{\"a\":nul}",
            ],
        ),
        (
            "root ::= block\nblock ::= \"[\" (\n  block |\n  word  # inside\n)* \"]\"\nword ::= [a-z]+ \" \"?",
            &["[]", "[a b]", "[a[b]c]", "[[[]]]", "[", "[A]", "[a][b]"],
        ),
        (
            "root ::= \"\\u00e4\" [\u{4e00}-\u{9fff}]+ .",
            &["\u{e4}\u{4e2d}!", "\u{e4}!", "\u{e4}\u{4e2d}\u{4e2d}", "a\u{4e2d}!"],
        ),
    ];
    for (source, texts) in cases {
        let grammar =
            compile(&Constraint::Gbnf(source.into())).unwrap_or_else(|e| panic!("{source}: {e}"));
        let parsed = gbnf::parse(source).unwrap();
        let mut verdicts = HashMap::new();
        for text in texts {
            let chars: Vec<char> = text.chars().collect();
            let root = &parsed.rules[parsed.root];
            let wanted = ends(&parsed.rules, root, &chars, 0, 0).contains(&chars.len());
            assert_eq!(accepts(&grammar, text), wanted, "{source}\n{text:?}");
            *verdicts.entry(wanted).or_insert(0) += 1;
        }
        assert_eq!(verdicts.len(), 2, "{source}: a case that cannot fail");
    }
}

#[test]
fn gbnf_rules_may_name_tokens() {
    let mut grammar =
        compile(&Constraint::Gbnf("root ::= <mark> \"a\" !<[97]> root | \"x\"".into())).unwrap();
    assert!(allowed(&mut grammar).contains(&MARK));
    grammar.accept(MARK).unwrap();
    assert_eq!(allowed(&mut grammar), [u32::from(b'a')].into());
    grammar.accept(u32::from(b'a')).unwrap();
    let next = allowed(&mut grammar);
    assert!(!next.contains(&97) && next.contains(&98) && next.contains(&257));
    assert!(compile(&Constraint::Gbnf("root ::= <nothing>".into())).is_err());
}

#[test]
fn the_copies_of_long_rules_are_bounded() {
    let long: String =
        (0..7000).map(|n| format!("[a-{}]", (b'b' + n as u8 % 25) as char)).collect();
    let of = |mentions: usize| {
        // The token makes the rule irregular, so that each mention is copied for itself.
        format!("root ::= <mark> {} root\nr ::= {long}\n", "r ".repeat(mentions))
    };
    let translate = |text: &str| gbnf::parse(text).and_then(|grammar| lark::write(&grammar));
    assert!(translate(&of(20)).is_ok());
    let refused = translate(&of(100_000)).unwrap_err();
    assert_eq!(refused, "it is too large: use fewer rules, and mention long rules less often");
    // A large grammar of short rules, as programs make from schemas, is translated.
    let short =
        (0..6000).map(|n| format!("r{n} ::= \"k{n}\" [0-9]+ ( r{} | \",\" )\n", (n + 1) % 6000));
    let text = format!("root ::= r0\n{}", short.collect::<String>());
    assert!(text.len() > 200_000, "{}", text.len());
    assert!(translate(&text).is_ok());
}
