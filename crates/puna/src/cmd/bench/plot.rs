//! Draws the results as an SVG chart. Each kind of work has a panel with its own scale, and each
//! test a group of bars. Puna's bar is the first, and a mark shows the machine's limit.

use std::fmt::Write;

use super::report::{ComparedResult, LimitShares, Report, machine};

/// Width of the chart. All lengths are in SVG user units (pixels).
const WIDTH: f64 = 860.0;
/// Left end of the bars; test names are to its left.
const LEFT: f64 = 200.0;
/// Space for numbers to the right of the longest bar.
const RIGHT: f64 = 190.0;
/// Height of a bar.
const BAR: f64 = 18.0;
/// Space between groups of bars.
const GAP: f64 = 12.0;
/// Height of the title above the panels.
const HEADER: f64 = 92.0;
/// Height of a panel's title and scale.
const PANEL: f64 = 56.0;

/// Colours for light and dark backgrounds. Bars of other tools alternate between colours.
const STYLE: &str = "\
svg { font: 13px system-ui, sans-serif; --back: #fff; --ink: #1c2126; --soft: #5d6872; --grid: #e2e6ea; \
--ours: #1f6fb2; --other0: #b9c2ca; --other1: #8f9ba6; --other2: #d3b98c; --limit: #c2410c; }
@media (prefers-color-scheme: dark) { svg { --back: #14181c; --ink: #e8ecef; --soft: #9aa6b0; --grid: #2b333a; \
--ours: #5aa9e6; --other0: #5d6872; --other1: #7d8994; --other2: #8a7547; --limit: #fb923c; } }
text { fill: var(--ink); } .soft { fill: var(--soft); } .title { font-size: 18px; font-weight: 600; }
.head { font-size: 14px; font-weight: 600; } .small { font-size: 11px; } .end { text-anchor: end; } .mid { text-anchor: middle; }
.strong { font-weight: 600; } .grid { stroke: var(--grid); } .limit { stroke: var(--limit); stroke-width: 2; } \
.back { fill: var(--back); } .ours { fill: var(--ours); } .other0 { fill: var(--other0); } .other1 { fill: var(--other1); } \
.other2 { fill: var(--other2); }";

/// Draws the whole chart.
pub fn svg(report: &Report<'_>) -> String {
    let panels = panels(&report.results);
    let height = HEADER + panels.iter().map(Panel::height).sum::<f64>() + 8.0;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{} — speed\">\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\"/>",
        escape(report.model)
    );
    header(&mut out, report);
    let mut y = HEADER;
    for panel in &panels {
        panel.draw(&mut out, y, report);
        y += panel.height();
    }
    out.push_str("</svg>\n");
    out
}

/// Draws the title, the machine, the date and the legend.
fn header(out: &mut String, report: &Report<'_>) {
    let name = report.model.rsplit(['/', '\\']).next().unwrap_or(report.model);
    text(out, "title", 16.0, 28.0, name);
    let date = jiff::Zoned::now().strftime("%-d %B %Y").to_string();
    let limits = format!("reads {:.1} GB/s", report.limits.read_gbs);
    text(out, "soft", 16.0, 48.0, &format!("{}, {limits} · {date}", machine(&report.machine)));
    let others = report.results.first().map_or(&[][..], |result| &result.others);
    let mut x = 16.0;
    let names = others.iter().map(|(name, _)| name.as_str());
    for (at, name) in ["puna"].into_iter().chain(names).enumerate() {
        rect(out, &class(at), x, 62.0, 12.0, 12.0);
        text(out, "soft", x + 18.0, 73.0, name);
        // Text widths are unknown in SVG; this estimate is large enough for any name.
        x += 40.0 + 8.0 * name.chars().count() as f64;
    }
    line(out, "limit", (x + 6.0, 61.0), (x + 6.0, 75.0));
    text(out, "soft", x + 14.0, 73.0, "the machine's limit");
}

/// Bars of one kind of work.
struct Panel<'a> {
    title: &'static str,
    results: Vec<&'a ComparedResult>,
}

fn panels(results: &[ComparedResult]) -> Vec<Panel<'_>> {
    let kind = |title, of: fn(&ComparedResult) -> bool| Panel {
        title,
        results: results.iter().filter(|r| of(r)).collect(),
    };
    let all = [
        kind("Reading prompts, tokens per second", |r| {
            r.measured.test.prompt > 0 && !r.measured.test.embed
        }),
        kind("Generating, tokens per second", |r| r.measured.test.generate > 0),
        kind("Embedding, tokens per second", |r| r.measured.test.embed),
    ];
    all.into_iter().filter(|panel| !panel.results.is_empty()).collect()
}

/// Colour index and speed of each bar of a test: Puna's first, then the bars of the other files
/// with this test.
fn bars(result: &ComparedResult) -> Vec<(usize, f64)> {
    let all = std::iter::once(Some(result.measured.tokens_per_second()));
    let all = all.chain(result.others.iter().map(|(_, other)| *other));
    all.enumerate().filter_map(|(at, speed)| Some((at, speed?))).collect()
}

fn group_height(result: &ComparedResult) -> f64 {
    bars(result).len() as f64 * BAR + GAP
}

impl Panel<'_> {
    fn height(&self) -> f64 {
        PANEL + self.results.iter().map(|result| group_height(result)).sum::<f64>()
    }

    /// End of the scale: the fastest bar, or a limit below three times that speed.
    fn scale_end(&self, report: &Report<'_>) -> f64 {
        let speeds = self.results.iter().flat_map(|result| bars(result));
        let fastest = speeds.map(|(_, speed)| speed).fold(1e-9, f64::max);
        let limits = self.results.iter().filter_map(|r| limit(r, report));
        fastest.max(limits.filter(|&x| x < 3.0 * fastest).fold(0.0, f64::max))
    }

    fn draw(&self, out: &mut String, top: f64, report: &Report<'_>) {
        let max = self.scale_end(report);
        let scale = (WIDTH - LEFT - RIGHT) / max;
        let bottom = top + self.height() - GAP;
        text(out, "head", 16.0, top + 20.0, self.title);
        for tick in ticks(max) {
            let x = LEFT + tick * scale;
            line(out, "grid", (x, top + 46.0), (x, bottom));
            text(out, "soft small mid", x, top + 40.0, &number(tick));
        }
        let mut y = top + PANEL;
        for result in &self.results {
            group(out, y, result, scale, report);
            y += group_height(result);
        }
    }
}

/// Draws the bars of one test.
fn group(out: &mut String, top: f64, result: &ComparedResult, scale: f64, report: &Report<'_>) {
    let speed = result.measured.tokens_per_second();
    let height = group_height(result) - GAP;
    text(out, "end", LEFT - 10.0, top + height / 2.0 + 4.0, &result.measured.test.name());
    for (row, (at, bar)) in bars(result).into_iter().enumerate() {
        let y = top + row as f64 * BAR;
        rect(out, &class(at), LEFT, y, bar * scale, BAR - 3.0);
        let label = match at {
            0 => format!("{} · {}", number(bar), share(result, report)),
            _ => format!("{} · puna {:.2}×", number(bar), speed / bar),
        };
        // The label is to the right of the bar, or of the limit's mark if they would overlap.
        let mark = limit(result, report).map_or(0.0, |x| x * scale);
        let end = if mark > bar * scale && mark < bar * scale + 150.0 { mark } else { bar * scale };
        text(
            out,
            if at == 0 { "strong small" } else { "soft small" },
            LEFT + end + 8.0,
            y + 12.0,
            &label,
        );
    }
    if let Some(limit) = limit(result, report).filter(|x| x * scale <= WIDTH - LEFT - RIGHT + 1.0) {
        let x = LEFT + limit * scale;
        line(out, "limit", (x, top - 2.0), (x, top + height - 1.0));
    }
}

/// Tokens per second at the binding limit.
fn limit(result: &ComparedResult, report: &Report<'_>) -> Option<f64> {
    let (_, share) = LimitShares::of(&result.measured, report.limits).binding_limit();
    (share > 0.0).then(|| result.measured.tokens_per_second() / share)
}

fn share(result: &ComparedResult, report: &Report<'_>) -> String {
    let (name, share) = LimitShares::of(&result.measured, report.limits).binding_limit();
    format!("{:.0} % of {name}", share * 100.0)
}

/// Three to six round numbers from 0 to `max`.
fn ticks(max: f64) -> Vec<f64> {
    let power = 10f64.powf((max / 4.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|x| x * power).into_iter().find(|step| max / step <= 5.0);
    let step = step.unwrap_or(max.max(1e-9));
    (0..=(max / step + 1e-6) as usize).map(|i| i as f64 * step).collect()
}

/// Formats a number with three significant digits.
fn number(x: f64) -> String {
    match x {
        x if x >= 100.0 || x == x.round() => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// CSS class of a bar by its index in the group; Puna's is the first.
fn class(at: usize) -> String {
    if at == 0 { "ours".into() } else { format!("other{}", (at - 1) % 3) }
}

fn text(out: &mut String, class: &str, x: f64, y: f64, text: &str) {
    let _ =
        writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
}

fn rect(out: &mut String, class: &str, x: f64, y: f64, width: f64, height: f64) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\"/>"
    );
}

fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn escape(text: &str) -> String {
    let clean = text.chars().filter(|c| !c.is_control());
    clean
        .collect::<String>()
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::bench::report::tests::report as example;

    /// Checks the elements: each is closed in order, attributes are quoted, and text is escaped.
    fn check_xml(text: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text.trim_end();
        while let Some(start) = rest.find('<') {
            let between = &rest[..start];
            let entity =
                |after: &str| ["amp;", "lt;", "gt;", "quot;"].iter().any(|e| after.starts_with(e));
            assert!(!between.contains('>') && between.split('&').skip(1).all(entity), "{between}");
            assert!(!open.is_empty() || between.is_empty(), "text outside the root: {between}");
            let end = start + rest[start..].find('>').expect("a tag ends");
            let tag = &rest[start + 1..end];
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None => {
                    let name = tag.split([' ', '/']).next().unwrap();
                    let attributes = tag[name.len()..].trim_end_matches('/');
                    assert!(
                        attributes.matches('"').count().is_multiple_of(2)
                            && !attributes.contains('<'),
                        "{tag}"
                    );
                    for pair in attributes
                        .split_inclusive("\" ")
                        .map(str::trim)
                        .filter(|pair| !pair.is_empty())
                    {
                        let (key, value) = pair.split_once('=').expect("a value");
                        assert!(
                            !key.contains(' ') && value.starts_with('"') && value.ends_with('"'),
                            "{pair}"
                        );
                    }
                    if !tag.ends_with('/') {
                        open.push(name);
                    }
                }
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest}");
    }

    #[test]
    fn the_chart_is_well_formed_and_complete() {
        let report = example();
        let svg = svg(&report);
        check_xml(&svg);
        let labels = [
            "m &amp; n",
            "a &lt;fast&gt; one, 2 threads, kernels avx2",
            "reads 20.0 GB/s",
            "puna",
            ">a<",
            ">b<",
        ];
        let tests = ["pp512", "tg32", "tg32, 2 busy"];
        let values = [
            "200 · 50 % of compute",
            "100 · puna 2.00×",
            "10 · 50 % of bandwidth",
            "8 · puna 1.25×",
        ];
        let heads = [
            "Reading prompts, tokens per second",
            "Generating, tokens per second",
            "the machine's limit",
        ];
        for label in labels.iter().chain(&tests).chain(&values).chain(&heads) {
            assert!(svg.contains(label), "{label} in\n{svg}");
        }
        assert!(!svg.contains("Embedding") && !svg.contains("NaN"));
        assert!(svg.contains(&jiff::Zoned::now().strftime("%Y").to_string()));
        // One mark per result and one in the legend.
        assert_eq!(svg.matches("<line class=\"limit\"").count(), report.results.len() + 1);
    }

    #[test]
    fn every_bar_and_number_is_inside_the_chart() {
        let svg = svg(&example());
        for rect in svg.split("<rect class=\"o").skip(1) {
            let number = |key: &str| -> f64 {
                let from = rect.find(&format!("{key}=\"")).unwrap() + key.len() + 2;
                rect[from..].split('"').next().unwrap().parse().unwrap()
            };
            assert!(number(" x") + number("width") <= WIDTH - RIGHT + 1.0, "{rect}");
        }
    }

    #[test]
    fn axes_have_a_few_round_tick_values() {
        assert_eq!(ticks(260.0), [0.0, 100.0, 200.0]);
        assert_eq!(ticks(4.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ticks(0.3).len(), 4);
        assert_eq!(
            (number(1234.5), number(36.31), number(0.5), number(20.0)),
            ("1234".into(), "36.3".into(), "0.50".into(), "20".into())
        );
    }
}
