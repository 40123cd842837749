//! Statistics that `--verbose` shows after an answer.

use std::io::{self, Write};
use std::time::Duration;

use puna_api::format_duration;
use puna_api::ollama::Metrics;

/// Writes the statistics. A value of zero is unknown and is left out.
pub fn write_stats(metrics: &Metrics, out: &mut dyn Write) -> io::Result<()> {
    let rate = |count: u64, nanos: u64| count as f64 / Duration::from_nanos(nanos).as_secs_f64();
    let Metrics { total_duration, load_duration, prompt_eval_count, prompt_eval_duration, .. } =
        *metrics;
    let Metrics { prompt_eval_cached_count, eval_count, eval_duration, .. } = *metrics;
    let mut row = |label: &str, shown: bool, value: String| match shown {
        true => writeln!(out, "{label:21} {value}"),
        false => Ok(()),
    };
    let mut time = |label: &str, nanos: u64| {
        row(label, nanos > 0, format_duration(Duration::from_nanos(nanos)))
    };
    time("total duration:", total_duration)?;
    time("load duration:", load_duration)?;
    row("prompt eval count:", prompt_eval_count > 0, format!("{prompt_eval_count} token(s)"))?;
    row(
        "prompt eval cached:",
        prompt_eval_cached_count > 0,
        format!("{prompt_eval_cached_count} token(s)"),
    )?;
    if prompt_eval_duration > 0 {
        row(
            "prompt eval duration:",
            true,
            format_duration(Duration::from_nanos(prompt_eval_duration)),
        )?;
        // Tokens from the prefix cache took no time.
        let computed = prompt_eval_count.saturating_sub(prompt_eval_cached_count);
        row(
            "prompt eval rate:",
            true,
            format!("{:.2} tokens/s", rate(computed, prompt_eval_duration)),
        )?;
    }
    row("eval count:", eval_count > 0, format!("{eval_count} token(s)"))?;
    if eval_duration > 0 {
        row("eval duration:", true, format_duration(Duration::from_nanos(eval_duration)))?;
        row("eval rate:", true, format!("{:.2} tokens/s", rate(eval_count, eval_duration)))?;
    }
    let Metrics {
        ngram_draft_count,
        ngram_accepted_count,
        model_draft_count,
        model_accepted_count,
        ..
    } = *metrics;
    for (label, drafted, accepted) in [
        ("ngram drafts:", ngram_draft_count, ngram_accepted_count),
        ("model drafts:", model_draft_count, model_accepted_count),
    ] {
        let percent = 100.0 * accepted as f64 / drafted.max(1) as f64;
        row(
            label,
            drafted > 0,
            format!("{drafted} token(s), {accepted} accepted ({percent:.0} %)"),
        )?;
    }
    Ok(())
}

/// Warns if messages or tokens were cut from the prompt or the context. `remedy` tells the user
/// how to get a larger context.
pub fn warn_truncated(metrics: &Metrics, remedy: &str, out: &mut dyn Write) -> io::Result<()> {
    let Metrics { truncated_tokens, truncated_messages, prompt_eval_count, .. } = *metrics;
    let mut left_out = Vec::new();
    if truncated_messages > 0 {
        left_out.push(format!("{truncated_messages} message(s)"));
    }
    if truncated_tokens > 0 {
        left_out.push(format!("{truncated_tokens} token(s)"));
    }
    if left_out.is_empty() {
        return Ok(());
    }
    let left_out = left_out.join(" and ");
    writeln!(
        out,
        "warning: the context is too short: {left_out} left out, {prompt_eval_count} token(s) of the prompt read; set a longer context with {remedy}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_warnings_state_both_counts_and_the_remedy() {
        let said = |metrics: &Metrics| {
            let mut out = Vec::new();
            warn_truncated(metrics, "num_ctx", &mut out).expect("writing to memory");
            String::from_utf8(out).expect("text")
        };
        let cut = Metrics { prompt_eval_count: 66, truncated_tokens: 244, ..Metrics::default() };
        let want = "warning: the context is too short: 244 token(s) left out, 66 token(s) of the prompt read; set a longer context with num_ctx\n";
        assert_eq!(said(&cut), want);
        let dropped = Metrics { truncated_messages: 2, ..cut };
        assert!(
            said(&dropped).contains("2 message(s) and 244 token(s) left out"),
            "{}",
            said(&dropped)
        );
        assert_eq!(said(&Metrics { truncated_tokens: 0, ..cut }), "");
    }

    fn stats(metrics: &Metrics) -> String {
        let mut out = Vec::new();
        write_stats(metrics, &mut out).expect("writing to memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn statistics_match_ollama() {
        let metrics = Metrics {
            total_duration: 4_648_158_584,
            load_duration: 4_071_084,
            prompt_eval_count: 26,
            prompt_eval_duration: 439_038_000,
            eval_count: 82,
            eval_duration: 4_115_061_000,
            ..Metrics::default()
        };
        let want = "\
total duration:       4.648158584s
load duration:        4.071084ms
prompt eval count:    26 token(s)
prompt eval duration: 439.038ms
prompt eval rate:     59.22 tokens/s
eval count:           82 token(s)
eval duration:        4.115061s
eval rate:            19.93 tokens/s
";
        assert_eq!(stats(&metrics), want);
    }

    #[test]
    fn draft_tokens_are_shown_by_source() {
        let metrics =
            Metrics { ngram_draft_count: 40, ngram_accepted_count: 30, ..Metrics::default() };
        assert_eq!(stats(&metrics), "ngram drafts:         40 token(s), 30 accepted (75 %)\n");
    }

    #[test]
    fn zero_values_are_omitted_and_cached_tokens_are_not_in_the_rate() {
        assert_eq!(stats(&Metrics::default()), "");
        let metrics = Metrics {
            prompt_eval_count: 100,
            prompt_eval_cached_count: 90,
            prompt_eval_duration: 1_000_000_000,
            ..Metrics::default()
        };
        let want = "\
prompt eval count:    100 token(s)
prompt eval cached:   90 token(s)
prompt eval duration: 1s
prompt eval rate:     10.00 tokens/s
";
        assert_eq!(stats(&metrics), want);
    }
}
