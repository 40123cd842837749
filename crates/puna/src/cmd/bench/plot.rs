//! The results as bars, in SVG.

use std::fmt::Write;

use super::measure::Measured;

const WIDTH: f64 = 640.0;
const ROW: f64 = 28.0;
const LEFT: f64 = 180.0;

pub fn svg(model: &str, results: &[Measured]) -> String {
    let most = results.iter().map(Measured::tokens_per_second).fold(1e-9, f64::max);
    let height = ROW * (results.len() as f64 + 1.5);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-weight=\"bold\">{} — tokens per second</text>\n",
        escape(model)
    );
    for (i, result) in results.iter().enumerate() {
        let (y, speed) = (ROW * (i as f64 + 1.2), result.tokens_per_second());
        let width = (WIDTH - LEFT - 90.0) * speed / most;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"#4878a8\"/><text x=\"{:.1}\" y=\"{}\">{speed:.1}</text>",
            LEFT - 8.0,
            y + 14.0,
            escape(&result.test.name()),
            ROW - 8.0,
            LEFT + width + 6.0,
            y + 14.0
        );
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
