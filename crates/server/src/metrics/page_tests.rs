//! Writes the tables of `docs/reference/metrics.md`.

use puna_mirror::MetricFamily;

use super::families::METRIC_FAMILIES;
use crate::util::generated_file::{assert_current, read, replace_section, table_row};

const PAGE: &str = "docs/reference/metrics.md";

#[test]
fn the_page_of_metrics_has_the_description_of_every_metric() {
    let mut page = read(PAGE);
    replace_section(&mut page, "metrics: server", &table(METRIC_FAMILIES));
    replace_section(&mut page, "metrics: mirror", &table(puna_mirror::METRIC_FAMILIES));
    assert_current(PAGE, &page);
}

fn table(families: &[&MetricFamily]) -> String {
    let mut out = table_row(&["name", "type", "labels", "meaning"]) + "|---|---|---|---|\n";
    for family in families {
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let name = format!("`{}`", family.name);
        out += &table_row(&[&name, family.kind.name(), &labels.join(", "), family.help]);
    }
    out
}
